package syncevent

import "fmt"

// Condition is what a wait waits for: Equal, NotEqual or Greater. The zero value is no
// condition.
type Condition struct {
	kind  conditionKind
	value uint64
	mask  uint64
}

// allBits is the mask that compares the whole value.
const allBits = ^uint64(0)

// Equal holds for events that have this value.
func Equal(value uint64) Condition { return Condition{equal, value, allBits} }

// NotEqual holds for events that have another value.
func NotEqual(value uint64) Condition { return Condition{notEqual, value, allBits} }

// Greater holds for events with a greater value, as unsigned numbers. If the value only grows,
// the condition stays true, so no change is missed.
func Greater(value uint64) Condition { return Condition{greater, value, allBits} }

// Masked makes the condition compare only the mask's bits of the event's value, with the whole
// value of the condition.
func (c Condition) Masked(mask uint64) Condition {
	c.mask = mask
	return c
}

type conditionKind uint8

const (
	equal conditionKind = iota + 1
	notEqual
	greater
)

func (c Condition) holds(v uint64) bool {
	v &= c.mask
	switch c.kind {
	case equal:
		return v == c.value
	case notEqual:
		return v != c.value
	default:
		return v > c.value
	}
}

// check refuses the zero Condition, and conditions that no value fulfils.
func (c Condition) check() error {
	switch {
	case c.kind == 0:
		return fmt.Errorf("%w: the condition is the zero value; make one with Equal, NotEqual or Greater", ErrInvalid)
	case c.mask == 0:
		return fmt.Errorf("%w: the mask is zero, which leaves nothing to compare; without Masked, all bits are compared", ErrInvalid)
	case c.kind == greater && c.value >= c.mask:
		return fmt.Errorf("%w: no value under the mask %#x is greater than %#x", ErrInvalid, c.mask, c.value)
	case c.kind != greater && c.value&^c.mask != 0:
		return fmt.Errorf("%w: the value %#x has bits outside the mask %#x, which no masked value has", ErrInvalid, c.value, c.mask)
	}
	return nil
}

// String describes the condition, as in "== 0x7".
func (c Condition) String() string {
	sign := [...]string{equal: "==", notEqual: "!=", greater: ">"}[c.kind]
	if c.mask == allBits {
		return fmt.Sprintf("%s %#x", sign, c.value)
	}
	return fmt.Sprintf("& %#x %s %#x", c.mask, sign, c.value)
}
