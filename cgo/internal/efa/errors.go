//go:build linux && cgo && verbs

package efa

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// MissingError is the error for a libefa that is missing or too old. It matches
// [verbs.ErrNotSupported].
type MissingError struct {
	Library  string // the file
	Function string // the function that it lacks; empty: it cannot be loaded
	Since    int    // the first version of rdma-core with the function
	Why      string // why it cannot be loaded
}

func (e *MissingError) Error() string {
	if e.Function == "" {
		return fmt.Sprintf("%s cannot be loaded (%s): install it (Debian: ibverbs-providers)", e.Library, e.Why)
	}
	return fmt.Sprintf("%s is too old: it has no %s, which came with rdma-core %d (Debian: ibverbs-providers)", e.Library, e.Function, e.Since)
}

// Unwrap makes errors.Is match [verbs.ErrNotSupported].
func (e *MissingError) Unwrap() error { return verbs.ErrNotSupported }
