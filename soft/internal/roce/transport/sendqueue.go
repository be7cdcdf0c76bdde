package transport

import (
	"fmt"
	"runtime/debug"
	"slices"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// MaxMessage is the longest message, in bytes (IBTA 9.7.7, C9-67).
const MaxMessage = 1 << 31

// sendWQE is a posted send request. Its packets take consecutive sequence
// numbers from first to last; for a read they are those of the responses.
type sendWQE struct {
	wr     verbs.SendWR // SGL is not kept
	segs   Segments
	inline []byte
	length uint32
	first  uint32
	last   uint32
	got    uint32       // bytes of a read's response that are in place
	fault  verbs.Status // a local error, reported when all earlier requests are complete

	bind     binding // of a bind
	executed bool    // of a request without packets
}

// local reports whether the request has no packets. It takes no sequence numbers; first is
// that of the next request.
func (w *sendWQE) local() bool {
	return w.wr.Op == verbs.OpBindMW || w.wr.Op == verbs.OpLocalInvalidate
}

// responds reports whether the request has a response of its own, besides acknowledgements.
func (w *sendWQE) responds() bool {
	return w.wr.Op == verbs.OpRead || isWord(w.wr.Op)
}

// isWord reports whether an operation changes one word of the peer's memory.
func isWord(op verbs.Opcode) bool {
	return op == verbs.OpCompareSwap || op == verbs.OpFetchAdd || op == verbs.OpAtomicWrite
}

// sendQueue holds the requests that are not complete, from head on. Each entry keeps its
// memory for segments and inline data.
type sendQueue struct {
	Ring[sendWQE]
	taken     int // entries in use, including those of requests that are done: see Unpolled
	maxSGE    int
	maxInline int
}

// Full reports whether no entry is free.
func (q *sendQueue) Full() bool { return q.taken >= q.depth }

// pop takes the oldest request off the queue.
func (q *sendQueue) pop() *sendWQE {
	w := q.at(q.head)
	q.head++
	clear(w.segs) // so that the collector can free the program's memory before the entry is used again
	return w
}

func newSendQueue(depth, maxSGE, maxInline int) sendQueue {
	return sendQueue{Ring: NewRing[sendWQE](depth), maxSGE: max(maxSGE, 1), maxInline: maxInline}
}

// PostSend posts send requests and returns how many were accepted.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	switch q.state {
	case verbs.QPReadyToSend, verbs.QPSendQueueDrained, verbs.QPSendQueueError, verbs.QPError:
	default:
		return 0, fmt.Errorf("post send on queue pair %#x in state %v: the state must be RTS: %w", q.num, q.state, verbs.ErrState)
	}
	n, err := len(wrs), error(nil)
	for i := range wrs {
		if err = q.postSend(&wrs[i]); err != nil {
			n, err = i, fmt.Errorf("post send %d of %d (%v) on queue pair %#x: %w", i+1, len(wrs), wrs[i].Op, q.num, err)
			break
		}
	}
	switch q.state {
	case verbs.QPError:
		q.flush()
	case verbs.QPSendQueueError:
		q.flushSends()
	}
	return n, err
}

func (q *QP) postSend(wr *verbs.SendWR) error {
	if q.sq.Full() {
		return fmt.Errorf("all %d entries of the send queue are in use; poll completions to free some: %w", q.sq.Depth(), verbs.ErrQueueFull)
	}
	if (wr.Op == verbs.OpBindMW || wr.Op == verbs.OpLocalInvalidate) && (len(wr.SGL) > 0 || wr.Flags&(verbs.FlagInline|verbs.FlagSolicited) != 0) {
		return fmt.Errorf("the operation moves no data, and takes neither scatter-gather entries nor flags for them: %w", verbs.ErrInvalid)
	}
	if len(wr.SGL) > q.sq.maxSGE {
		return fmt.Errorf("%d scatter-gather entries exceed the limit of %d: %w", len(wr.SGL), q.sq.maxSGE, verbs.ErrInvalid)
	}
	if err := rules.CheckRequest(q.kind, wr.Op, wr.Flags); err != nil {
		return err
	}
	if q.sq.Len() == 0 && q.sendIdx == q.sq.head {
		// Start at the first place again. With thousands of connections and one request at a
		// time, caches then hold one place of each.
		q.sq.empty()
		q.sendIdx = 0
	}
	q.sq.reserve()
	w := q.sq.at(q.sq.tail)
	w.fault, w.got, w.executed = verbs.StatusSuccess, 0, false
	access := verbs.Access(0)
	if (wr.Op == verbs.OpRead || isWord(wr.Op)) && q.maxInitRead == 0 {
		return fmt.Errorf("the queue pair has MaxInitReadAtomic 0, so it can send no reads, atomics or atomic writes: %w", verbs.ErrInvalid)
	}
	switch wr.Op {
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		if wr.Flags&verbs.FlagInline != 0 {
			return fmt.Errorf("FlagInline on an operation that returns data: %w", verbs.ErrInvalid)
		}
		access = verbs.AccessLocalWrite
	}
	var total uint64
	if wr.Flags&verbs.FlagInline != 0 {
		for _, e := range wr.SGL {
			total += uint64(e.Length)
		}
		if total > uint64(q.sq.maxInline) {
			return fmt.Errorf("%d bytes of inline data exceed the limit of %d: %w", total, q.sq.maxInline, verbs.ErrInvalid)
		}
		if w.inline == nil {
			w.inline = make([]byte, 0, q.sq.maxInline)
		}
		var err error
		if w.inline, err = q.memory.AppendInline(w.inline[:0], wr.SGL); err != nil {
			return err
		}
		w.segs = w.segs.Inline(w.inline)
	} else {
		var ok bool
		if w.segs, total, ok = q.memory.Resolve(w.segs, wr.SGL, q.domain, access); !ok {
			w.fault = verbs.StatusLocalProtectionError
		}
	}
	if total > MaxMessage {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d: %w", total, uint64(MaxMessage), verbs.ErrInvalid)
	}
	if q.kind == verbs.XRCSend && wr.RemoteSRQN > wire.PSNMask {
		return fmt.Errorf("RemoteSRQN is %#x; numbers of shared receive queues have 24 bits: %w", wr.RemoteSRQN, verbs.ErrInvalid)
	}
	if q.kind == verbs.UD {
		if err := q.checkDatagram(wr, total); err != nil {
			return err
		}
	}
	if w.fault == verbs.StatusSuccess && isWord(wr.Op) && total != 8 {
		w.fault = verbs.StatusLocalLengthError
	}
	if wr.Op == verbs.OpBindMW {
		if err := q.postBind(w, wr.Bind); err != nil {
			return err
		}
	}
	w.wr = *wr
	w.wr.SGL, w.wr.Bind = nil, nil
	w.length = uint32(total)
	w.first = q.nextPSN
	w.last = wire.PSNAdd(w.first, q.packets(w)-1) // before first if it has none
	q.nextPSN = wire.PSNAdd(w.last, 1)
	q.sq.tail++
	q.sq.taken++
	return nil
}

// postBind fills in the binding of a bind request.
func (q *QP) postBind(w *sendWQE, b *verbs.MWBind) error {
	if q.findBind == nil {
		return fmt.Errorf("the device has no memory windows: %w", verbs.ErrNotSupported)
	}
	window, region, err := q.findBind(b)
	if err != nil {
		return err
	}
	w.bind = binding{window: window, region: region, key: window.post(b.RKey), addr: b.Addr, length: b.Length, access: b.Access}
	return nil
}

// packets returns how many sequence numbers a request takes.
func (q *QP) packets(w *sendWQE) int {
	switch {
	case w.local():
		return 0
	case isWord(w.wr.Op) || w.length == 0:
		return 1
	}
	return int((w.length-1)>>q.mtuShift) + 1
}

// AppendInline copies the bytes that the entries name by address. If they cannot be read, the
// error matches [syscall.EFAULT].
func (m *Memory) AppendInline(dst []byte, sgl []verbs.SGE) ([]byte, error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // for dma.Copy
	for i := range sgl {
		n := int(sgl[i].Length)
		if n == 0 {
			continue
		}
		at := len(dst)
		dst = slices.Grow(dst, n)[:at+n]
		if dma.Copy(dst[at:], m.inlineData(&sgl[i])) != dma.NoFault {
			return dst[:at], fmt.Errorf("cannot read %d bytes of inline data at address %#x: %w: %w", n, sgl[i].Addr, syscall.EFAULT, verbs.ErrInvalid)
		}
	}
	return dst, nil
}

// inlineData returns the bytes of an entry, which need no region. Where addresses of regions are
// not pointers, the entry may name either.
func (m *Memory) inlineData(e *verbs.SGE) []byte {
	if m.Virtual {
		if r := m.regions[e.LKey]; r != nil {
			if b, inside := r.slice(e.Addr, e.Length); inside {
				return b
			}
		}
	}
	return unsafe.Slice((*byte)(addressOf(e.Addr)), int(e.Length))
}

// addressOf converts an address to a pointer. The caller guarantees that it is valid.
//
//go:nocheckptr
func addressOf(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}
