package mmap

import "errors"

// Errors of this package, matched with errors.Is.
var (
	ErrPermission    = errors.New("permission missing")
	ErrInUse         = errors.New("memory map in use")
	ErrRange         = errors.New("size out of range")
	ErrExists        = errors.New("already registered")
	ErrNotRegistered = errors.New("not registered")
	ErrRemote        = errors.New("not possible on an imported memory map")
	ErrInvalid       = errors.New("invalid argument")
	ErrClosed        = errors.New("memory map closed")
	ErrNotHeld       = errors.New("memory map not held")
)
