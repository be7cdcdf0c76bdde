package ibverbs

import (
	"fmt"
	"syscall"
)

// Error is the error of a verb. It matches the errno, and the corresponding error of package
// verbs, if there is one.
type Error struct {
	Verb    string        // the function of libibverbs
	Request string        // the request and its object, unless an enclosing error names them
	Errno   syscall.Errno // zero if the verb gave none
	Detail  string        // the cause and what to do, if known
	Kind    error         // one of package verbs' errors, or nil
}

// Error names the function, the request, the errno, and what to do.
func (e *Error) Error() string {
	s := e.Verb
	if e.Request != "" {
		s += ": " + e.Request
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
