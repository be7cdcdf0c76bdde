//go:build linux && cgo && verbs

package efa

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// MissingError is a libefa that is not there, or too old. It matches
// [verbs.ErrNotSupported].
type MissingError struct {
	Library  string // the file
	Function string // that it does not have; empty: it cannot be loaded
	Since    int    // the version of rdma-core that has the function first
	Why      string // why it cannot be loaded
}

func (e *MissingError) Error() string {
	if e.Function == "" {
		return fmt.Sprintf("%s cannot be loaded (%s): install it (Debian: ibverbs-providers)", e.Library, e.Why)
	}
	return fmt.Sprintf("%s is too old: it has no %s, which came with rdma-core %d (Debian: ibverbs-providers)", e.Library, e.Function, e.Since)
}

// Unwrap makes errors.Is match.
func (e *MissingError) Unwrap() error { return verbs.ErrNotSupported }
