package syncevent

import "fmt"

// condition is what a waiter waits for.
type condition struct {
	kind  conditionKind
	value uint64
	mask  uint64
}

type conditionKind uint8

const (
	equal conditionKind = iota
	notEqual
	greater
)

func (c *condition) holds(v uint64) bool {
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

// check refuses conditions that no value fulfils, and a mask that compares nothing.
func (c *condition) check() error {
	switch {
	case c.mask == 0:
		return fmt.Errorf("%w: the mask is zero, which leaves nothing to compare; ^uint64(0) compares all bits", ErrInvalid)
	case c.kind == greater && c.value >= c.mask:
		return fmt.Errorf("%w: no value under the mask %#x is greater than %#x", ErrInvalid, c.mask, c.value)
	case c.kind != greater && c.value&^c.mask != 0:
		return fmt.Errorf("%w: the value %#x has bits outside the mask %#x, which no masked value has", ErrInvalid, c.value, c.mask)
	}
	return nil
}

// String describes the condition.
func (c condition) String() string {
	sign := [...]string{equal: "==", notEqual: "!=", greater: ">"}[c.kind]
	if c.mask == ^uint64(0) {
		return fmt.Sprintf("%s %#x", sign, c.value)
	}
	return fmt.Sprintf("& %#x %s %#x", c.mask, sign, c.value)
}
