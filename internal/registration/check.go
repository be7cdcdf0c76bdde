// Package registration checks which memory is registered, and with which access
// rights. It is the one check of that for all drivers.
package registration

import (
	"fmt"
	"math"
	"os"

	"github.com/verbena-rdma/verbena/verbs"
)

// Rights are all the access rights that package verbs has.
const Rights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead |
	verbs.AccessRemoteAtomic | verbs.AccessRelaxedOrdering

// CheckDMABuf is Check for the bytes of a dma-buf.
func CheckDMABuf(buf verbs.DMABuf, access verbs.Access) error {
	page := uint64(os.Getpagesize())
	switch {
	case buf.Length > math.MaxInt64 || buf.Offset > math.MaxInt64-buf.Length || buf.IOVA > math.MaxUint64-buf.Length:
		return fmt.Errorf("register dma-buf: %d bytes from offset %d, at address %#x: they run past the end of memory: %w",
			buf.Length, buf.Offset, buf.IOVA, verbs.ErrInvalid)
	case buf.Offset%page != buf.IOVA%page:
		return fmt.Errorf("register dma-buf: the offset %d and the address %#x lie in different places of their pages of %d bytes (ibv_reg_mr(3)): %w",
			buf.Offset, buf.IOVA, page, verbs.ErrInvalid)
	}
	return Check(buf.Length, access)
}

// Check says why length bytes cannot be registered with these access rights, in an
// error that matches [verbs.ErrInvalid].
func Check(length uint64, access verbs.Access) error {
	switch {
	case length == 0:
		return fmt.Errorf("register memory: it is empty; give at least one byte: %w", verbs.ErrInvalid)
	case access&^Rights != 0:
		return fmt.Errorf("register memory: access rights %#x: only those in %#x exist: %w", uint32(access), uint32(Rights), verbs.ErrInvalid)
	case access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && access&verbs.AccessLocalWrite == 0:
		return fmt.Errorf("register memory: remote write or atomic access needs local write access too (IBTA 10.6.3.1): %w", verbs.ErrInvalid)
	}
	return nil
}
