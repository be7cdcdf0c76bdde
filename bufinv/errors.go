package bufinv

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Those of memory maps come through
// wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a piece of memory is empty, or lies outside the memory it is part of; or a
	// number of buffers is not possible.
	ErrRange = errs.ErrRange
	// ErrExhausted: all Bufs of the Inventory or the Pool are in use.
	ErrExhausted = errs.ErrExhausted
	// ErrFreed: the Buf's last reference has been dropped.
	ErrFreed = errs.ErrFreed
	// ErrInUse: Bufs have not been freed.
	ErrInUse = errs.ErrInUse
	// ErrClosed: the Inventory or the Pool has been closed.
	ErrClosed = errs.ErrClosed
	// ErrChained: the Buf is an element of a list, where the call does not allow that.
	ErrChained = errors.New("buffer is part of a list")
)

// storeErrors are the Bufs with an error that a store returns when it has none to hand out.
type storeErrors struct{ exhausted, closed *Buf }

func storeErrorsOf(what string) storeErrors {
	return storeErrors{
		exhausted: errorBuf(fmt.Errorf("take buffer: %s is %w; free some buffers, or make it larger", what, ErrExhausted)),
		closed:    errorBuf(fmt.Errorf("take buffer: %s is %w", what, ErrClosed)),
	}
}

// Made in advance: the hot path returns them, or they have no details to add.
var (
	inventoryErrors = storeErrorsOf("the inventory")
	poolErrors      = storeErrorsOf("the pool")

	errUseFreed  = fmt.Errorf("use buffer: it was %w", ErrFreed)
	errFreeFreed = fmt.Errorf("free buffer: it was already %w", ErrFreed)
	errFreeInner = fmt.Errorf("free buffer: %w, which holds the last reference: free its first element, or Unchain this one", ErrChained)
	errNoBuf     = fmt.Errorf("use buffer: %w: no buffer is given", ErrInvalid)
)
