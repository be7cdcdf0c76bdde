package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Priority says which batches go first while queues are full.
type Priority int

// The priorities. Batches of a lower one wait as long as there is work of a higher one for peers that
// can take it.
const (
	Background Priority = iota - 1
	Normal
	Urgent
	levels = 3
)

// level is 0 for what goes first.
func (p Priority) level() int { return int(Urgent - p) }

// Batch is a list of items: reads, writes and atomics on the memory of peers. The zero value is ready for
// use, and Submit empties it. Items have numbers, from 0, in the order of the calls that add them. A Batch
// belongs to one goroutine at a time.
type Batch struct {
	// Priority says which batches go first while queues are full. Zero: Normal.
	Priority Priority

	items []item
}

// item is an operation. The agent's mutex guards all from next on.
type item struct {
	op        rdma.Operation
	remote    *RemoteSegment
	offset    int      // in remote
	slice     []byte   // here; nil for atomics
	local     *Segment // that slice is part of
	arg, swap uint64

	sub      *subBatch // nil: it has ended
	next     int32     // item of the same subBatch; -1: none
	pieces   int32     // cut and not ended
	cut      int       // bytes that are in pieces
	original uint64
	err      error
}

func (it *item) length() int {
	switch {
	case it.atomic():
		return 8
	case it.op == rdma.OpWriteImm:
		return 4
	}
	return len(it.slice)
}

func (it *item) atomic() bool { return it.op == rdma.OpFetchAdd || it.op == rdma.OpCompareSwap }

// Read adds an item that fills a slice of registered memory from a segment of a peer.
func (b *Batch) Read(from *RemoteSegment, offset int, into []byte) {
	b.items = append(b.items, item{op: rdma.OpRead, remote: from, offset: offset, slice: into})
}

// Write adds an item that writes a slice of registered memory to a segment of a peer.
func (b *Batch) Write(to *RemoteSegment, offset int, from []byte) {
	b.items = append(b.items, item{op: rdma.OpWrite, remote: to, offset: offset, slice: from})
}

// FetchAdd adds an item that adds to 8 bytes of a peer, in its byte order, at an address that is a
// multiple of 8. [Handle.Original] has the value before.
func (b *Batch) FetchAdd(at *RemoteSegment, offset int, add uint64) {
	b.items = append(b.items, item{op: rdma.OpFetchAdd, remote: at, offset: offset, arg: add})
}

// CompareSwap adds an item that stores swap in 8 bytes of a peer, as FetchAdd does, if they hold compare.
func (b *Batch) CompareSwap(at *RemoteSegment, offset int, compare, swap uint64) {
	b.items = append(b.items, item{op: rdma.OpCompareSwap, remote: at, offset: offset, arg: compare, swap: swap})
}

// Note adds an item that gives a peer's program a value ([Agent.Note]), exactly once, when all other items of the
// batch for this peer have succeeded: what they have written is in its memory. If one fails, the note fails with
// ErrNotSent.
func (b *Batch) Note(to *Peer, value uint32) {
	it := item{op: rdma.OpWriteImm, arg: uint64(value)}
	if to != nil {
		it.remote = to.inbox
	}
	b.items = append(b.items, it)
}

// Len is the number of items.
func (b *Batch) Len() int { return len(b.items) }

// Grow makes room for n more items.
func (b *Batch) Grow(n int) { b.items = slices.Grow(b.items, max(n, 0)) }

// subBatch is the items of one batch to one peer that have not ended.
type subBatch struct {
	h      *Handle
	peer   *Peer
	level  int
	first  int32    // the first item that is not all in pieces; -1: none
	last   int32    // while it is made
	left   int      // items that have not ended, but for notes
	failed bool     // one has
	epoch  uint64   // of the peer whose memory they use; zero: they do not
	again  []*piece // to be repeated
	queued bool
}

// Handle is a batch that was submitted.
type Handle struct {
	agent *Agent
	items []item
	subs  []*subBatch
	done  chan struct{}

	// Guarded by the agent's mutex.
	left     int // items that have not ended
	bytes    int64
	failed   int
	canceled bool
}

// Submit begins a batch, and empties it. It does not wait, also if no connection exists, but registers memory that
// the cache has not (Config.CacheBytes). It allocates nothing for each item.
//
// If it fails, it has begun nothing, and the batch is as before. An *ItemError names the first item that is wrong,
// and matches ErrInvalid for memory of another agent's peer, ErrRange, ErrPermission, ErrNotRegistered, ErrStale or
// ErrClosed. A segment that is not yet known to be stale, and all other failures, are errors of the Handle.
func (a *Agent) Submit(b *Batch) (*Handle, error) {
	if b.Priority < Background || b.Priority > Urgent {
		return nil, fmt.Errorf("submit a batch with priority %d: %w: it can be %d (Background) to %d (Urgent)", b.Priority, ErrInvalid, Background, Urgent)
	}
	h := &Handle{agent: a, items: b.items, left: len(b.items), done: make(chan struct{})}
	a.mu.Lock()
	err := a.closed
	for i := 0; i < len(h.items) && err == nil; i++ { // all before the checks: the agent may be unlocked meanwhile
		if e := a.hold(&h.items[i]); e != nil {
			err = h.itemError(i, e)
		}
	}
	err = cmp.Or(err, a.closed)
	for i := 0; i < len(h.items) && err == nil; i++ {
		if e := a.check(&h.items[i]); e != nil {
			err = h.itemError(i, e)
		}
	}
	if err != nil {
		for i := range h.items {
			if it := &h.items[i]; it.local != nil {
				a.letGo(it.local)
				it.local = nil
			}
		}
		a.mu.Unlock()
		return nil, fmt.Errorf("submit a batch of %d items: %w", len(h.items), err)
	}
	b.items = nil
	a.counters.Pending += uint64(h.left)
	for _, notes := range []bool{false, true} { // which are the last of their sub-batches
		for i := range h.items {
			if (h.items[i].op == rdma.OpWriteImm) == notes {
				h.add(int32(i), b.Priority.level())
			}
		}
	}
	if h.left == 0 {
		close(h.done)
	}
	for _, sub := range h.subs {
		sub.peer.filling = nil
		sub.peer.enqueue(sub)
		sub.peer.connect()
	}
	a.mu.Unlock()
	return h, nil
}

// check checks an item. The lock is held.
func (a *Agent) check(it *item) error {
	s := it.remote
	switch {
	case s == nil || s.peer.agent != a:
		return fmt.Errorf("%w: not a segment of a peer of this agent", ErrInvalid)
	case s.peer.closed != nil:
		return s.peer.closed
	case it.op == rdma.OpWriteImm:
		return nil
	case s.stale:
		return ErrStale
	case it.length() == 0 || it.offset < 0 || it.offset > s.size-it.length():
		return fmt.Errorf("%w: the segment has %d bytes, and an item at least one of them", ErrRange, s.size)
	case it.atomic() && a.cfg.Transport == verbs.SRD:
		return fmt.Errorf("%w: SRD has no atomics", rdma.ErrNotSupported)
	case it.atomic():
		for _, k := range s.keys[:s.peer.reached.Devices] {
			if at := k.Addr + uint64(it.offset); at%8 != 0 {
				return fmt.Errorf("%w: an atomic needs an address that is a multiple of 8, and this one is at %#x there", ErrInvalid, at)
			}
		}
		return allows(s.perm, mmap.RemoteAtomic, "the segment")
	}
	need := mmap.RemoteRead
	if it.op == rdma.OpWrite {
		need = mmap.RemoteWrite
	}
	err := allows(s.perm, need, "the segment")
	switch {
	case err != nil:
	case it.local == nil:
		err = fmt.Errorf("%w: the slice of %d bytes here; call Register first, or set Config.CacheBytes", ErrNotRegistered, len(it.slice))
	case it.op == rdma.OpRead:
		err = allows(it.local.perm, mmap.LocalReadWrite, "the memory here")
	}
	return err
}

func allows(perm, need mmap.Permission, of string) error {
	if !perm.Has(need) {
		return fmt.Errorf("%w: %s allows %v, not %v", ErrPermission, of, perm, need)
	}
	return nil
}

// add puts an item that was checked into the sub-batch of its peer.
func (h *Handle) add(i int32, level int) {
	it := &h.items[i]
	it.next = -1
	p := it.remote.peer
	sub := p.filling // of this batch, or of an earlier one
	if sub == nil || sub.h != h {
		sub = &subBatch{h: h, peer: p, level: level, first: i}
		p.filling = sub
		h.subs = append(h.subs, sub)
	} else {
		h.items[sub.last].next = i
	}
	sub.last = i
	it.sub = sub
	if it.op != rdma.OpWriteImm {
		sub.left++
		sub.epoch = it.remote.epoch
	}
}

// Done is closed when all items have ended.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Wait waits until all items have ended, and returns Err; or until ctx ends, with its cause: then the items go
// on, and their memory is still in use. Cancel ends them.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
	case <-ctx.Done():
	}
	err := h.Err()
	if err == ErrPending {
		err = fmt.Errorf("wait for a batch of %d items, which goes on: %w", len(h.items), context.Cause(ctx))
	}
	return err
}

// Err is nil if all items have succeeded. Otherwise it says how many failed, and matches the *ItemError of the
// first. Before the end it is ErrPending.
func (h *Handle) Err() error {
	select {
	case <-h.done:
	default:
		return ErrPending
	}
	if h.failed == 0 {
		return nil
	}
	i := slices.IndexFunc(h.items, func(it item) bool { return it.err != nil })
	return fmt.Errorf("%d of %d items failed; the first is %w", h.failed, len(h.items), h.itemError(i, h.items[i].err))
}

// Len is the number of items.
func (h *Handle) Len() int { return len(h.items) }

// Progress is how many items have ended, and how many bytes have been moved, also of items that go on or have failed.
func (h *Handle) Progress() (items int, bytes int64) {
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	return len(h.items) - h.left, h.bytes
}

// Item is how an item ended: nil if it succeeded, or an *ItemError; before its end, the error matches ErrPending,
// and ErrRange if there is no such item.
func (h *Handle) Item(i int) error {
	if i < 0 || i >= len(h.items) {
		return fmt.Errorf("item %d of a batch of %d: %w", i, len(h.items), ErrRange)
	}
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	switch it := &h.items[i]; {
	case it.sub != nil:
		return h.itemError(i, ErrPending)
	case it.err != nil:
		return h.itemError(i, it.err)
	}
	return nil
}

// Original is the value of the peer's memory before an atomic that has succeeded; zero for all else.
func (h *Handle) Original(i int) uint64 {
	if i < 0 || i >= len(h.items) {
		return 0
	}
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	return h.items[i].original
}

// Cancel ends the items that no device has, with ErrCanceled. The others end as soon as no device can touch
// their memory any more: see Done. Canceling again, or a batch that has ended, does nothing.
func (h *Handle) Cancel() {
	a := h.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	h.canceled = true
	for _, sub := range h.subs {
		sub.drop(ErrCanceled)
	}
}

// nextPiece cuts the next piece, or takes one that has to be repeated.
func (sub *subBatch) nextPiece() *piece {
	if len(sub.again) > 0 {
		pc := sub.again[0]
		sub.again = sub.again[1:]
		return pc
	}
	for ; sub.first >= 0; sub.first = sub.h.items[sub.first].next {
		it := &sub.h.items[sub.first]
		if it.cut == it.length() { // it has failed
			continue
		}
		a := sub.peer.agent
		if it.op == rdma.OpWriteImm && sub.left > 0 {
			return nil // until end finds that there are none left
		}
		pc := a.newPiece()
		pc.sub, pc.item, pc.offset = sub, it, it.cut
		pc.length = min(it.length()-it.cut, a.cfg.Piece)
		it.pieces++
		if it.cut += pc.length; it.cut == it.length() {
			sub.first = it.next
		}
		return pc
	}
	return nil
}

// drop ends the items of a sub-batch of which no device has anything; of the others, what is not cut is not sent. The
// lock is held.
func (sub *subBatch) drop(err error) {
	a := sub.h.agent
	again := sub.again
	sub.again = nil
	for _, pc := range again {
		a.pieceEnded(pc, err)
	}
	for sub.first >= 0 {
		it := &sub.h.items[sub.first]
		sub.first = it.next
		if it.cut < it.length() {
			it.cut = it.length()
			it.fail(err)
		}
		if it.pieces == 0 {
			sub.h.end(it)
		}
	}
}

// fail notes why an item fails: the first reason, or that it may still take effect.
func (it *item) fail(err error) {
	if it.err == nil || errors.Is(err, ErrUnknown) {
		it.err = err
	}
}

// end ends an item of which no device has anything. The lock is held.
func (h *Handle) end(it *item) {
	sub := it.sub
	if sub == nil {
		return
	}
	it.sub = nil
	if it.op != rdma.OpWriteImm {
		sub.failed = sub.failed || it.err != nil
		if sub.left--; sub.left == 0 && sub.first >= 0 { // its notes are left
			if dead := cmp.Or(h.agent.closed, sub.peer.closed); dead != nil || sub.failed {
				sub.drop(cmp.Or(dead, ErrNotSent))
			} else {
				sub.peer.enqueue(sub)
			}
		}
	}
	c := &h.agent.counters
	c.Pending--
	if it.remote.keys == nil && it.op == rdma.OpRead { // a look-up is no item of the program's
		c = &Counters{}
	}
	c.Items++
	if it.err != nil {
		h.failed++
		c.Failed++
	} else {
		c.Bytes += uint64(it.length())
	}
	if it.local != nil {
		h.agent.letGo(it.local)
	}
	if h.left--; h.left == 0 {
		h.subs = nil
		close(h.done)
	}
}

func (h *Handle) itemError(i int, err error) error {
	it := &h.items[i]
	e := &ItemError{Item: i, Op: it.op, Offset: it.offset, Length: it.length(), Err: err}
	if it.remote != nil {
		e.Peer, e.Segment = it.remote.peer.String(), it.remote.name
	}
	return e
}

// piece is a part of an item that one request moves.
type piece struct {
	sub    *subBatch
	item   *item
	offset int // in the item
	length int
	remote *mmap.Map // the peer's memory, as the device of path reaches it
	path   *path
}

func (a *Agent) newPiece() *piece {
	a.pieces++
	last := len(a.spare) - 1
	if last < 0 {
		return &piece{}
	}
	pc := a.spare[last]
	a.spare = a.spare[:last]
	return pc
}

// pieceEnded notes that no device has the piece any more, nor will have it. The lock is held.
func (a *Agent) pieceEnded(pc *piece, err error) {
	it, h, length := pc.item, pc.sub.h, pc.length
	*pc = piece{}
	a.spare = append(a.spare, pc)
	a.pieces--
	if err != nil {
		it.fail(err)
		it.cut = it.length() // the rest is not begun
	} else {
		h.bytes += int64(length)
	}
	if it.pieces--; it.pieces == 0 && it.cut == it.length() {
		h.end(it)
	}
}
