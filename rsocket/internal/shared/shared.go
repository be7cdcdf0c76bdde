// Package shared has values that several users share by name. The first user opens a value, and the
// last one closes it. A value that works is the only one of its name.
package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Values is a set of shared values. All methods, and those of a Ref, may be called from any
// goroutine.
type Values[T any] struct {
	Open  func(name string) (T, error)
	Close func(T) error // for the last Release; after End, it is called again
	Dead  func(T) bool  // the value is of no use any more; Acquire opens another
	// Drained returns a channel that is closed when a value without users has nothing to do any more.
	// Until then Acquire takes the value back. Nil: it is closed at once.
	Drained func(T) <-chan struct{}
	Keep    bool // the set itself is a user of each value, until End

	mu    sync.Mutex
	refs  map[string]*Ref[T]
	ended bool
}

// Ref is a value that is in use. A nil *Ref is none, which Retain and Release ignore.
type Ref[T any] struct {
	Value  T
	err    error // of Open
	set    *Values[T]
	name   string
	opened chan struct{} // closed when Open has returned
	closed chan struct{} // closed when Close has, behind the last user

	// The lock of the set guards these.
	state state
	users int
	taken chan struct{} // closed when a value that is draining is taken back
}

type state int

const (
	opening state = iota
	open
	draining // it has no users, and may be taken back
	closing
	failed // Open has
)

// Acquire returns the value with the name, for one user. It opens the value, on another goroutine,
// if nobody uses it. While that goes on, and while an earlier value is being closed, it waits until
// ctx ends. It does not wait for one that only has something left to do, but takes it back.
func (v *Values[T]) Acquire(ctx context.Context, name string) (*Ref[T], error) {
	for {
		r, isUser, err := v.enter(name)
		if err != nil {
			return nil, err
		}
		done := r.opened
		if !isUser {
			done = r.closed
		}
		select {
		case <-done:
		case <-ctx.Done():
			if !isUser || r.giveUp() {
				return nil, context.Cause(ctx)
			}
		}
		if isUser && r.err != nil {
			return nil, r.err
		}
		if isUser {
			return r, nil
		}
	}
}

// enter makes the caller a user of the value with the name, unless that is being closed.
func (v *Values[T]) enter(name string) (r *Ref[T], isUser bool, err error) {
	var dead *Ref[T]
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return nil, false, fmt.Errorf("use %s: %w", name, net.ErrClosed)
	}
	if r = v.refs[name]; r != nil && r.state == open && v.Dead(r.Value) {
		delete(v.refs, name)
		if v.Keep {
			dead = r
		}
		r = nil
	}
	if r == nil {
		r = &Ref[T]{set: v, name: name, opened: make(chan struct{}), closed: make(chan struct{})}
		if v.Keep {
			r.users++
		}
		if v.refs == nil {
			v.refs = make(map[string]*Ref[T])
		}
		v.refs[name] = r
		go func() {
			_ = dead.Release() // first: what it has open may be in the way
			r.open()
		}()
	}
	if r.state == draining && !v.Dead(r.Value) {
		r.takeBack()
	}
	if r.state == draining || r.state == closing {
		return r, false, nil
	}
	r.users++
	return r, true, nil
}

// takeBack makes a value that is draining an open one.
func (r *Ref[T]) takeBack() {
	r.state = open
	close(r.taken)
	r.taken = nil
}

// open opens the value, and closes it if all users have given up.
func (r *Ref[T]) open() {
	value, err := r.set.Open(r.name)
	r.set.mu.Lock()
	r.Value, r.err, r.state = value, err, open
	unused := err == nil && r.users == 0
	if unused {
		r.state = closing
	}
	if err != nil {
		r.state = failed
		r.remove()
	}
	r.set.mu.Unlock()
	close(r.opened)
	if unused {
		_ = r.close()
	}
}

// giveUp ends the use of a value that is still being opened.
func (r *Ref[T]) giveUp() bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.state == opening {
		r.users--
	}
	return r.state == opening
}

// Retain is for one more user. The caller is one, or has one.
func (r *Ref[T]) Retain() {
	if r != nil {
		r.set.mu.Lock()
		defer r.set.mu.Unlock()
		r.users++
	}
}

// Release ends the use by one user. For the last one it returns when Close has, with its error, or
// when the value has been taken back.
func (r *Ref[T]) Release() error {
	if r == nil {
		return nil
	}
	r.set.mu.Lock()
	r.users--
	last := r.users == 0 && r.state == open
	taken := make(chan struct{})
	if last {
		r.state, r.taken = draining, taken
	}
	r.set.mu.Unlock()
	if !last || !r.drain(taken) {
		return nil
	}
	return r.close()
}

// drain waits until the value may be closed. It reports false if the value was taken back.
func (r *Ref[T]) drain(taken chan struct{}) bool {
	if r.set.Drained != nil {
		select {
		case <-r.set.Drained(r.Value):
		case <-taken:
		}
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.taken != taken {
		return false
	}
	r.state = closing
	return true
}

func (r *Ref[T]) close() error {
	err := r.set.Close(r.Value)
	r.set.mu.Lock()
	r.remove()
	r.set.mu.Unlock()
	close(r.closed)
	return err
}

// remove makes room for another value of the name.
func (r *Ref[T]) remove() {
	if r.set.refs[r.name] == r {
		delete(r.set.refs, r.name)
	}
}

// End closes all values, whether they are in use or not, and makes Acquire fail with net.ErrClosed. Close
// may release users of any value: End is one of each meanwhile, so that no Release closes it again, and
// waits for the call that waits for it.
func (v *Values[T]) End() (err error) {
	v.mu.Lock()
	holds := 1
	if v.Keep && !v.ended {
		holds = 2
	}
	v.ended = true
	held := map[*Ref[T]]int{}
	for _, r := range v.refs {
		held[r] = 0
		if r.state == draining {
			r.takeBack()
		}
		if r.state != closing {
			r.users++
			held[r] = holds
		}
	}
	v.mu.Unlock()
	for r := range held {
		if <-r.opened; r.err == nil {
			err = errors.Join(err, v.Close(r.Value))
		}
	}
	for r, n := range held {
		for ; n > 0 && r.err == nil; n-- {
			_ = r.Release() // if it closes the value again, it has the same error
		}
	}
	return err
}
