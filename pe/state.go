package pe

import (
	"strconv"
	"strings"
)

// State is the state of a context.
type State int

// The states of a context, in the order in which it passes through them.
const (
	Idle State = iota
	Starting
	Running
	Stopping
)

// String names the state.
func (s State) String() string {
	switch s {
	case Idle:
		return "Idle"
	case Starting:
		return "Starting"
	case Running:
		return "Running"
	case Stopping:
		return "Stopping"
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// StateError is the error of a call that is not legal in the state of its object. It matches
// ErrBadState, and what its Cause matches: the caller learns why the context ended.
type StateError struct {
	Op     string  // the operation: "start", "submit a write"
	Object string  // its object: `context "rdma"`
	State  State   // the state of the object
	Legal  []State // the states in which the call is legal
	Cause  error   // Core.Err, if an error has stopped the object
}

// Error names the object, its state, the states in which the call is legal, and the
// cause.
func (e *StateError) Error() string {
	var b strings.Builder
	b.WriteString("pe: cannot " + e.Op + ": " + e.Object + " is " + e.State.String() + ", and the call is legal only in ")
	for i, s := range e.Legal {
		switch {
		case i == 0:
		case i == len(e.Legal)-1:
			b.WriteString(" and ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(s.String())
	}
	if e.Cause != nil {
		b.WriteString("; it has failed: " + e.Cause.Error())
	}
	return b.String()
}

// Is makes the error match ErrBadState.
func (e *StateError) Is(target error) bool { return target == ErrBadState }

// Unwrap returns the cause, or nil.
func (e *StateError) Unwrap() error { return e.Cause }
