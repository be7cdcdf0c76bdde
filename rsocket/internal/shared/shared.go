// Package shared has values that several users share by name. The first user opens a value, and the
// last one closes it.
package shared

import "sync"

// Values is a set of shared values. Open and Close make and end them. All methods, and those of a
// Ref, may be called from any goroutine.
type Values[T any] struct {
	Open  func(name string) (T, error) // calls do not overlap
	Close func(T)                      // for the last Release

	mu   sync.Mutex
	refs map[string]*Ref[T]
}

// Ref is a value that is in use. A nil *Ref is none, which Retain and Release ignore.
type Ref[T any] struct {
	Value T
	set   *Values[T]
	name  string
	users int
}

// Acquire returns the value with the name, for one user. It opens the value if nobody uses it.
func (v *Values[T]) Acquire(name string) (*Ref[T], error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.refs[name]
	if r == nil {
		value, err := v.Open(name)
		if err != nil {
			return nil, err
		}
		r = &Ref[T]{Value: value, set: v, name: name}
		if v.refs == nil {
			v.refs = make(map[string]*Ref[T])
		}
		v.refs[name] = r
	}
	r.users++
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

// Release ends the use by one user. For the last one it returns when Close has. Meanwhile Acquire
// opens another value.
func (r *Ref[T]) Release() {
	if r == nil {
		return
	}
	r.set.mu.Lock()
	r.users--
	last := r.users == 0
	if last {
		delete(r.set.refs, r.name)
	}
	r.set.mu.Unlock()
	if last {
		r.set.Close(r.Value)
	}
}
