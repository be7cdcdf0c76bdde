package rules

import (
	"fmt"
	"math"
	"os"

	"github.com/verbena-rdma/verbena/verbs"
)

const (
	peerRights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	// QueuePairRights are all the access rights that a queue pair can be given.
	QueuePairRights = verbs.AccessLocalWrite | peerRights | verbs.AccessRelaxedOrdering
	// Rights are all access rights of memory regions.
	Rights = QueuePairRights | verbs.AccessMWBind
	// WindowRights are all access rights of memory windows.
	WindowRights = peerRights | verbs.AccessZeroBased
)

// CheckBind says what is wrong with a bind of a memory window, whatever the state of window
// and region, in an error that matches [verbs.ErrInvalid]. What depends on their state fails
// the request when the device executes it (IBTA 10.6.7.2.2).
func CheckBind(b *verbs.MWBind) error {
	switch {
	case b == nil || b.MW == nil:
		return fmt.Errorf("SendWR.Bind names no memory window: %w", verbs.ErrInvalid)
	case b.MR == nil:
		return fmt.Errorf("SendWR.Bind names no memory region: %w", verbs.ErrInvalid)
	case b.MR.Access()&verbs.AccessMWBind == 0:
		return fmt.Errorf("SendWR.Bind names a region without AccessMWBind; register it with that: %w", verbs.ErrInvalid)
	case b.MW.Type() == verbs.MWType1 && b.Access&verbs.AccessZeroBased != 0:
		return fmt.Errorf("SendWR.Bind has AccessZeroBased, which windows of type 1 do not (IBTA 10.6.7.2.2): %w", verbs.ErrInvalid)
	case b.Access&^WindowRights != 0:
		return fmt.Errorf("SendWR.Bind has the access rights %#x; windows can have only those in %#x: %w", uint32(b.Access), uint32(WindowRights), verbs.ErrInvalid)
	}
	return nil
}

// CheckWindowKey says why a window with the key have cannot be bound to the key of the
// request: the device chooses the upper 24 bits of the keys of type 2.
func CheckWindowKey(b *verbs.MWBind, have uint32) error {
	if b.MW.Type() == verbs.MWType2 && (b.RKey^have)>>8 != 0 {
		return fmt.Errorf("SendWR.Bind has the key %#x, the window %#x: only the lower 8 bits can be chosen: %w", b.RKey, have, verbs.ErrInvalid)
	}
	return nil
}

// CheckDMABuf is CheckRegistration for the bytes of a dma-buf.
func CheckDMABuf(buf verbs.DMABuf, access verbs.Access) error {
	page := uint64(os.Getpagesize())
	switch {
	case buf.Length > math.MaxInt64 || buf.Offset > math.MaxInt64-buf.Length || buf.IOVA > math.MaxUint64-buf.Length:
		return fmt.Errorf("register dma-buf: %d bytes from offset %d, at address %#x, run past the end of memory: %w",
			buf.Length, buf.Offset, buf.IOVA, verbs.ErrInvalid)
	case buf.Offset%page != buf.IOVA%page:
		return fmt.Errorf("register dma-buf: the offset %d and the address %#x differ in their positions within a page of %d bytes (ibv_reg_mr(3)): %w",
			buf.Offset, buf.IOVA, page, verbs.ErrInvalid)
	}
	return CheckRegistration(buf.Length, access)
}

// CheckRegistration says why length bytes cannot be registered with these access rights, in an
// error that matches [verbs.ErrInvalid].
func CheckRegistration(length uint64, access verbs.Access) error {
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
