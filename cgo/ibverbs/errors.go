package ibverbs

import (
	"fmt"
	"syscall"
)

// Error is a verb that failed. It matches the errno, and the error of package
// verbs that stands for it where there is one.
type Error struct {
	Verb   string        // the function of libibverbs
	Asked  string        // what was asked of it, and on what, unless an error around it says so
	Errno  syscall.Errno // zero if the verb gave none
	Detail string        // what was wrong and what to do, as far as is known
	Kind   error         // one of package verbs' errors, or nil
}

// Error names the function, what was asked of it, the errno, and what to do.
func (e *Error) Error() string {
	s := e.Verb
	if e.Asked != "" {
		s += ": " + e.Asked
	}
	if e.Errno != 0 {
		s += fmt.Sprintf(": %v (errno %d)", e.Errno, int(e.Errno))
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap makes errors.Is match the errno and the kind.
func (e *Error) Unwrap() []error {
	var list []error
	if e.Errno != 0 {
		list = append(list, e.Errno)
	}
	if e.Kind != nil {
		list = append(list, e.Kind)
	}
	return list
}
