// Package errno makes errors of the operating system match the same POSIX names on every
// system. Package syscall has these names on Windows too, but Windows returns numbers of its
// own, which do not match them.
package errno

import (
	"errors"
	"syscall"
)

// Named returns an error that matches, with [errors.Is], everything that err matches. On Windows
// it also matches the POSIX name of the error, such as [syscall.EADDRINUSE]. Its text is that of
// err. Other errors, and nil, are returned unchanged.
func Named(err error) error {
	if err == nil {
		return nil // without an allocation
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
