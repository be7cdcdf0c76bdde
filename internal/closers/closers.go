// Package closers keeps what a device has to close before it is closed itself.
package closers

import (
	"container/list"
	"sync"
)

// List is the functions that close what was made on a device. The zero value is
// ready for use, by several goroutines at a time.
type List struct {
	mu    sync.Mutex
	funcs list.List
}

// Add has Close call f, until remove is called.
func (l *List) Add(f func() error) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.funcs.PushBack(f)
	return func() { l.remove(e) }
}

func (l *List) remove(e *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.funcs.Remove(e) // does nothing if it is gone
}

// Close calls the functions, the latest first, and removes those that succeed. It
// returns the first error: what was made earlier may be in use by what has failed.
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
