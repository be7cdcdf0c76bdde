package transfer

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// Errors of this package, matched with errors.Is. Those of packages rdma and mmap, and of the
// device, come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = mmap.ErrInvalid
	// ErrRange: an item leaves its segment, or a setting its limits.
	ErrRange = mmap.ErrRange
	// ErrPermission: the segment does not allow it.
	ErrPermission = mmap.ErrPermission
	// ErrInUse: items that have not ended use the segment.
	ErrInUse = mmap.ErrInUse
	// ErrClosed: the agent, the peer or the segment has been closed.
	ErrClosed = mmap.ErrClosed
	// ErrNotRegistered: the slice of an item is not in memory that the agent has registered.
	ErrNotRegistered = mmap.ErrNotRegistered
	// ErrNoSegment: the peer publishes no segment of that name, or not yet: it can be reached before it calls Register.
	ErrNoSegment = errors.New("no such segment")
	// ErrExists: the agent has published a segment of that name.
	ErrExists = mmap.ErrExists
	// ErrStale: the peer's agent was opened again since the segment was looked up, or the peer
	// publishes other memory by that name now. Look the segment up again at the same Peer.
	ErrStale = errors.New("the segment has been replaced; look it up again")
	// ErrUnknown: the connection ended while the device had the item. Perhaps it has taken
	// effect; unless it is a read, it still may until the peer's end of the connection has ended,
	// or with SRD until the peer has closed the segment.
	ErrUnknown = errors.New("outcome is not known")
	// ErrCanceled: Handle.Cancel ended the item before it was done.
	ErrCanceled = errors.New("canceled")
	// ErrNotSent: a note was not sent, because an item before it failed.
	ErrNotSent = errors.New("not sent, since an item before it failed")
	// ErrPending: the item has not ended.
	ErrPending = errs.ErrPending
	// ErrProtocol: what answers is not an agent of this protocol, or breaks its rules.
	ErrProtocol = errs.ErrProtocol
)

func unknown(why error) error { return fmt.Errorf("%w: %w", ErrUnknown, why) }

// ItemError is the error of one item of a batch.
type ItemError struct {
	Item    int            // its number in the batch, from 0
	Op      rdma.Operation // what it does; a note is an OpWriteImm
	Peer    string         // the addresses that were dialled
	Segment string         // of the peer
	Offset  int            // in the segment
	Length  int            // bytes
	Err     error          // why it failed
}

// Error names the item and what it was to do.
func (e *ItemError) Error() string {
	if e.Op == rdma.OpWriteImm {
		return fmt.Sprintf("item %d: note to %s: %v", e.Item, e.Peer, e.Err)
	}
	return fmt.Sprintf("item %d: %v of %d bytes at offset %d of segment %q of %s: %v", e.Item, e.Op, e.Length, e.Offset, e.Segment, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *ItemError) Unwrap() error { return e.Err }
