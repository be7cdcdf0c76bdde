// Package errno has one name for an error of the operating system on every system. Package
// syscall has the names of POSIX on Windows too, but Windows returns numbers of its own, which
// do not match them.
package errno

import (
	"errors"
	"syscall"
)

// Named returns an error that matches, with [errors.Is], what err matches and, on Windows, the
// name that package syscall has for it elsewhere, such as [syscall.EADDRINUSE]. Its text is that
// of err. Other errors, and nil, it returns as they are.
func Named(err error) error {
	if err == nil {
		return nil // nothing is allocated
	}
	return named(err, nameOf)
}

func named(err error, nameOf func(syscall.Errno) error) error {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return err
	}
	name := nameOf(number)
	if name == nil || errors.Is(err, name) {
		return err
	}
	return &namedError{err, name}
}

type namedError struct{ err, name error }

func (e *namedError) Error() string        { return e.err.Error() }
func (e *namedError) Unwrap() error        { return e.err }
func (e *namedError) Is(target error) bool { return target == e.name }
