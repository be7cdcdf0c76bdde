// Package closers keeps the functions that a device calls when it is closed, and waits for what
// others can delay.
package closers

import (
	"container/list"
	"sync"
	"time"
)

// List holds the functions that close the objects made on a device. The zero value is
// ready for use. Its methods may be called from any goroutine.
type List struct {
	mu    sync.Mutex
	funcs list.List
}

// Add adds f to the functions that Close calls. remove takes it out again.
func (l *List) Add(f func() error) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.funcs.PushBack(f)
	return func() { l.remove(e) }
}

func (l *List) remove(e *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.funcs.Remove(e) // does nothing if e was removed before
}

// Close calls the functions, the latest first, and removes those that succeed. It stops at the
// first error and returns it, because the object that could not be closed may still use objects
// that were made earlier.
func (l *List) Close() error {
	for {
		l.mu.Lock()
		e := l.funcs.Back()
		l.mu.Unlock()
		if e == nil {
			return nil
		}
		if err := e.Value.(func() error)(); err != nil {
			return err
		}
		l.remove(e)
	}
}

// Wait calls wait, for at most limit, and reports whether it has returned. Otherwise it continues
// in the background.
func Wait(limit time.Duration, wait func()) bool {
	ended := make(chan struct{})
	go func() {
		wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(limit):
		return false
	}
}
