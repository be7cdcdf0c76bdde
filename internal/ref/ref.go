// Package ref has references that an owner can end. Many objects may keep a reference to what they
// have looked up; when the owner ends it, they look it up again, and the value can be collected
// although they exist.
package ref

// Ref is a reference to a value. Nil refers to nothing.
type Ref[T any] struct{ value *T }

// To returns a reference to v.
func To[T any](v *T) *Ref[T] { return &Ref[T]{v} }

// Get returns the value, or nil if the reference has ended.
func (r *Ref[T]) Get() *T {
	if r == nil {
		return nil
	}
	return r.value
}

// End ends the reference for all who keep it.
func (r *Ref[T]) End() { r.value = nil }
