// Package shared has values that several users share by name. The first user opens a value, and the
// last one closes it. Values of one name are open one after the other, never two at a time.
package shared

import (
	"context"
	"sync"
)

// Values is a set of shared values. Open and Close make and end them. All methods, and those of a
// Ref, may be called from any goroutine.
type Values[T any] struct {
	Open  func(name string) (T, error) // calls do not overlap
	Close func(T)                      // for the last Release
	Dead  func(T) bool                 // the value is of no use any more; Acquire opens another

	mu   sync.Mutex
	refs map[string]*Ref[T]
}

// Ref is a value that is in use. A nil *Ref is none, which Retain and Release ignore.
type Ref[T any] struct {
	Value  T
	set    *Values[T]
	name   string
	closed chan struct{} // closed when Value is, behind the last user
	users  int           // zero: it is being closed; set.mu guards it
}

// Acquire returns the value with the name, for one user. It opens the value if nobody uses it. While
// an earlier one is being closed it waits, until ctx ends.
func (v *Values[T]) Acquire(ctx context.Context, name string) (*Ref[T], error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for r := v.refs[name]; r != nil; r = v.refs[name] {
		if r.users > 0 && !v.Dead(r.Value) {
			r.users++
			return r, nil
		}
		if r.users > 0 {
			delete(v.refs, name)
			break
		}
		v.mu.Unlock()
		select {
		case <-r.closed:
		case <-ctx.Done():
		}
		v.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	value, err := v.Open(name)
	if err != nil {
		return nil, err
	}
	r := &Ref[T]{Value: value, set: v, name: name, closed: make(chan struct{}), users: 1}
	if v.refs == nil {
		v.refs = make(map[string]*Ref[T])
	}
	v.refs[name] = r
	return r, nil
}

// Retain is for one more user. The caller is one, or has one.
func (r *Ref[T]) Retain() {
	if r != nil {
		r.set.mu.Lock()
		defer r.set.mu.Unlock()
		r.users++
	}
}

// Release ends the use by one user. For the last one it returns when Close has.
func (r *Ref[T]) Release() {
	if r == nil {
		return
	}
	r.set.mu.Lock()
	r.users--
	last := r.users == 0
	r.set.mu.Unlock()
	if !last {
		return
	}
	r.set.Close(r.Value)
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if r.set.refs[r.name] == r {
		delete(r.set.refs, r.name)
	}
	close(r.closed)
}
