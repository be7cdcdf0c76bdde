// Package registration knows what memory can be registered, and with which
// rights, on every device.
package registration

import (
	"fmt"
	"math"
	"os"

	"github.com/verbena-rdma/verbena/verbs"
)

const known = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead |
	verbs.AccessRemoteAtomic | verbs.AccessRelaxedOrdering

// CheckDMABuf is Check for bytes of a dma-buf that get addresses from iova on.
func CheckDMABuf(offset, length, iova uint64, access verbs.Access) error {
	page := uint64(os.Getpagesize())
	switch {
	case length > math.MaxInt64 || offset > math.MaxInt64-length || iova > math.MaxUint64-length:
		return fmt.Errorf("register dma-buf: %d bytes from %d on, at %#x: there is no memory of that size: %w", length, offset, iova, verbs.ErrInvalid)
	case offset%page != iova%page:
		return fmt.Errorf("register dma-buf: the offset %d and the address %#x lie in different places of their pages of %d bytes (ibv_reg_mr(3)): %w",
			offset, iova, page, verbs.ErrInvalid)
	}
	return Check(length, access)
}

// Check says what is wrong with registering that many bytes with these rights, in
// an error that matches [verbs.ErrInvalid].
func Check(length uint64, access verbs.Access) error {
	switch {
	case length == 0:
		return fmt.Errorf("register memory: it is empty: %w", verbs.ErrInvalid)
	case access&^known != 0:
		return fmt.Errorf("register memory: access rights %#x: there are none beyond %#x: %w", uint32(access), uint32(known), verbs.ErrInvalid)
	case access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && access&verbs.AccessLocalWrite == 0:
		return fmt.Errorf("register memory: remote write or atomic access needs local write access too (IBTA 10.6.3.1): %w", verbs.ErrInvalid)
	}
	return nil
}
