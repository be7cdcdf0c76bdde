package bufinv

import (
	"errors"
	"fmt"
)

// Errors of this package, matched with errors.Is.
var (
	ErrExhausted = errors.New("no buffer is free")
	ErrRange     = errors.New("out of range")
	ErrFreed     = errors.New("buffer has been freed")
	ErrChained   = errors.New("buffer is part of a list")
	ErrInUse     = errors.New("buffers in use")
	ErrInvalid   = errors.New("invalid argument")
	ErrClosed    = errors.New("closed")
)

// Made in advance: they are met on the hot path, or have nothing to add.
var (
	errUseFreed  = fmt.Errorf("use buffer: %w", ErrFreed)
	errFreeFreed = fmt.Errorf("free buffer: %w already", ErrFreed)
	errFreeInner = fmt.Errorf("free buffer: %w, which holds the last reference: free its first element, or Unchain this one", ErrChained)
	errNoBuf     = fmt.Errorf("use buffer: %w: it is nil or was not made by an inventory or a pool", ErrInvalid)
)
