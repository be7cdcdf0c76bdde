//go:build linux && cgo && verbs

package ibverbs

// #cgo nocallback vb_post_send
// #cgo nocallback vb_post_recv
// #cgo nocallback vb_post_srq_recv
// #include "verbena_ibverbs.h"
// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

// The limits of a batch. The requests of a batch are laid out in C memory and posted in one
// call; more requests take several calls.
const (
	postBatch   = 64
	postEntries = 256
)

// sends is the C memory for a batch of send requests. All requests are linked, but for the last
// one of the batch that was posted last.
type sends struct {
	wrs    []C.struct_ibv_send_wr
	sges   []C.struct_ibv_sge
	maxSGE int
	last   int // index of the request that ends the list

	extended *extendedSends // nil: posted by ibv_post_send
}

// callocSlice returns zeroed C memory. Like Go's allocator, it does not return if there is no
// memory; it is used for a few kilobytes.
func callocSlice[T any](n int) []T {
	var t T
	size := C.size_t(n) * C.size_t(unsafe.Sizeof(t))
	p := C.malloc(size)
	C.memset(p, 0, size)
	return unsafe.Slice((*T)(p), n)
}

// entriesFor returns how many scatter-gather entries to allocate for n requests.
func entriesFor(n, maxSGE int) int { return max(maxSGE, min(n*maxSGE, postEntries)) }

func newSends(depth, maxSGE int) sends {
	n := min(max(depth, 1), postBatch)
	s := sends{
		wrs: callocSlice[C.struct_ibv_send_wr](n), maxSGE: maxSGE, last: n - 1,
		sges: callocSlice[C.struct_ibv_sge](entriesFor(n, maxSGE)),
	}
	for i := range n - 1 {
		s.wrs[i].next = &s.wrs[i+1]
	}
	return s
}

// end makes the nth request the last one of the list.
func (s *sends) end(n int) {
	if s.last == n {
		return
	}
	if s.last+1 < len(s.wrs) {
		s.wrs[s.last].next = &s.wrs[s.last+1]
	}
	s.wrs[n].next = nil
	s.last = n
}

func (s *sends) free() {
	C.free(unsafe.Pointer(&s.wrs[0]))
	C.free(unsafe.Pointer(&s.sges[0]))
	s.wrs, s.sges = nil, nil
	if s.extended != nil {
		s.extended.free()
	}
}

// sendOpcodes has no atomic write: in rdma-core 44, only the provider of rxe posts any, and rxe
// has had them since Linux 6.2.
var sendOpcodes = [...]C.enum_ibv_wr_opcode{
	verbs.OpSend: C.IBV_WR_SEND, verbs.OpSendImm: C.IBV_WR_SEND_WITH_IMM,
	verbs.OpWrite: C.IBV_WR_RDMA_WRITE, verbs.OpWriteImm: C.IBV_WR_RDMA_WRITE_WITH_IMM,
	verbs.OpRead: C.IBV_WR_RDMA_READ, verbs.OpCompareSwap: C.IBV_WR_ATOMIC_CMP_AND_SWP,
	verbs.OpFetchAdd: C.IBV_WR_ATOMIC_FETCH_AND_ADD, verbs.OpSendInvalidate: C.IBV_WR_SEND_WITH_INV,
	verbs.OpLocalInvalidate: C.IBV_WR_LOCAL_INV, verbs.OpBindMW: C.IBV_WR_BIND_MW,
}

const allSendFlags = verbs.FlagSignaled | verbs.FlagSolicited | verbs.FlagFence | verbs.FlagInline

// sendFlagsOf has the flags of libibverbs for each combination of flags.
var sendFlagsOf = func() (table [allSendFlags + 1]C.uint) {
	for f := range table {
		for _, flag := range []struct {
			flag verbs.SendFlags
			c    C.uint
		}{
			{verbs.FlagSignaled, C.IBV_SEND_SIGNALED}, {verbs.FlagSolicited, C.IBV_SEND_SOLICITED},
			{verbs.FlagFence, C.IBV_SEND_FENCE}, {verbs.FlagInline, C.IBV_SEND_INLINE},
		} {
			if verbs.SendFlags(f)&flag.flag != 0 {
				table[f] |= flag.c
			}
		}
	}
	return table
}()

func copyEntries(to []C.struct_ibv_sge, from []verbs.SGE) {
	for i := range from {
		to[i] = C.struct_ibv_sge{addr: C.uint64_t(from[i].Addr), length: C.uint32_t(from[i].Length), lkey: C.uint32_t(from[i].LKey)}
	}
}

func tooManyEntries(n, most int) error {
	return fmt.Errorf("%d scatter-gather entries; at most %d are allowed: %w", n, most, verbs.ErrInvalid)
}

// fill lays out as many requests as fit. If the request after them is invalid, it also returns
// an error.
func (s *sends) fill(q *queuePair, wrs []verbs.SendWR) (n int, err error) {
	used := 0
	for n < len(wrs) && n < len(s.wrs) {
		wr := &wrs[n]
		entries := len(wr.SGL)
		if entries > s.maxSGE {
			return n, tooManyEntries(entries, s.maxSGE)
		}
		if err := rules.CheckRequest(q.init.Type, wr.Op, wr.Flags); err != nil {
			return n, err
		}
		if int(wr.Op) >= len(sendOpcodes) {
			return n, fmt.Errorf("adapters do not have the operation here (DeviceAttr.AtomicWrite): %w", verbs.ErrNotSupported)
		}
		if used+entries > len(s.sges) {
			return n, nil
		}
		if s.extended != nil {
			if err := s.extended.check(q, n, wr); err != nil {
				return n, err
			}
		}
		var bind binding
		switch wr.Op {
		case verbs.OpBindMW:
			if bind, err = q.pd.binding(wr); err != nil || bind.mw.t == verbs.MWType1 {
				return n, err // a type 1 bind is not posted in a batch
			}
		case verbs.OpSendInvalidate, verbs.OpLocalInvalidate:
			if err := q.pd.device.checkInvalidation(); err != nil {
				return n, err
			}
		}
		// Fields that do not belong to the operation must be zero: rxe's provider refuses a bind
		// with immediate data. Only the unions of 24 and 48 bytes keep what an earlier request of
		// another operation has left in their unused rest.
		c := &s.wrs[n]
		c.sg_list, c.anon0 = nil, [4]byte{}
		c.wr_id, c.num_sge = C.uint64_t(wr.ID), C.int(entries)
		c.opcode, c.send_flags = sendOpcodes[wr.Op], sendFlagsOf[wr.Flags&allSendFlags]
		if entries > 0 {
			copyEntries(s.sges[used:], wr.SGL)
			c.sg_list = &s.sges[used]
			used += entries
		}
		args := unsafe.Pointer(&c.wr)
		switch wr.Op {
		case verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead:
			*(*abi.RDMAArgs)(args) = abi.RDMAArgs{RemoteAddr: wr.RemoteAddr, RKey: wr.RKey}
		case verbs.OpCompareSwap, verbs.OpFetchAdd:
			*(*abi.AtomicArgs)(args) = abi.AtomicArgs{RemoteAddr: wr.RemoteAddr, CompareAdd: wr.CompareAdd, Swap: wr.Swap, RKey: wr.RKey}
		default:
			*(*abi.AtomicArgs)(args) = abi.AtomicArgs{}
			if q.init.Type == verbs.UD {
				ah, err := q.handle(wr)
				if err != nil {
					return n, err
				}
				*(*abi.DatagramArgs)(args) = abi.DatagramArgs{AH: unsafe.Pointer(ah), QPN: wr.RemoteQPN, QKey: wr.RemoteQKey}
			}
		}
		switch wr.Op {
		case verbs.OpBindMW:
			*(*abi.BindArgs)(unsafe.Pointer(&c.anon1)) = bind.args(wr.Bind)
		case verbs.OpSendInvalidate, verbs.OpLocalInvalidate:
			*(*uint32)(unsafe.Pointer(&c.anon0)) = wr.InvalidateRKey
		case verbs.OpSendImm, verbs.OpWriteImm:
			binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&c.anon0))[:], wr.Imm)
		}
		n++
	}
	return n, nil
}

// handle returns the address handle of a request. The device's handles are locked.
func (q *queuePair) handle(wr *verbs.SendWR) (*C.struct_ibv_ah, error) {
	ah := handleOf(wr.AH)
	if ah == nil || ah.pd != q.pd || ah.c == nil {
		return nil, fmt.Errorf("a datagram needs an address handle of the queue pair's protection domain: %w", verbs.ErrInvalid)
	}
	return ah.c, nil
}

// postResult splits the result of a post of n requests into the number of requests that the
// device took, and the error of the request after them.
func postResult(verb string, result C.int64_t, n int) (int, error) {
	if result == 0 {
		return n, nil
	}
	errno := syscall.Errno(result & 0xffffffff)
	kind := kindOf(errno)
	if errno == syscall.ENOMEM {
		kind = verbs.ErrQueueFull
	}
	taken := min(max(int(result>>32), 0), n)
	return taken, &Error{Verb: verb, Errno: errno, Kind: kind, Detail: adviceFor(errno)}
}

// PostSend implements [verbs.QP].
func (q *queuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.open("post send"); err != nil {
		return 0, err
	}
	switch q.state {
	case verbs.QPReset, verbs.QPInitialized, verbs.QPReadyToReceive:
		return 0, fmt.Errorf("post send on queue pair %#x in state %v: it must be RTS: %w", q.num, q.state, verbs.ErrState)
	}
	binds := haveBind(wrs)
	if q.addressed() || binds {
		d := q.pd.device
		d.handles.RLock()
		defer d.handles.RUnlock()
	}
	done := 0
	for done < len(wrs) {
		n, bad := q.sends.fill(q, wrs[done:])
		if n > 0 {
			taken, err := q.sends.post(q, n)
			if binds {
				recordBinds(wrs[done : done+taken])
			}
			done += taken
			if err != nil {
				bad = err
			}
		} else if bad == nil {
			if bad = q.bindType1(&wrs[done]); bad == nil {
				done++
			}
		}
		if bad != nil {
			return done, fmt.Errorf("post send %d of %d (%v) on queue pair %#x of %s: %w", done+1, len(wrs), wrs[done].Op, q.num, q.pd.device.info.Name, bad)
		}
	}
	return done, nil
}

// post posts the first n requests.
func (s *sends) post(q *queuePair, n int) (int, error) {
	if s.extended != nil {
		return s.extended.post(s.wrs[:n])
	}
	s.end(n - 1)
	return postResult("ibv_post_send", C.vb_post_send(cAddress(q.c), cAddress(&s.wrs[0])), n)
}

// receives is the C memory for a batch of receives.
type receives struct {
	wrs    []C.struct_ibv_recv_wr
	sges   []C.struct_ibv_sge
	maxSGE int
}

func newReceives(depth, maxSGE int) receives {
	n := min(max(depth, 1), postBatch)
	return receives{
		wrs: callocSlice[C.struct_ibv_recv_wr](n), maxSGE: maxSGE,
		sges: callocSlice[C.struct_ibv_sge](entriesFor(n, maxSGE)),
	}
}

func (r *receives) free() {
	if r.wrs == nil {
		return
	}
	C.free(unsafe.Pointer(&r.wrs[0]))
	C.free(unsafe.Pointer(&r.sges[0]))
	r.wrs, r.sges = nil, nil
}

func (r *receives) fill(wrs []verbs.RecvWR) (n int, err error) {
	used := 0
	for n < len(wrs) && n < len(r.wrs) {
		entries := len(wrs[n].SGL)
		if entries > r.maxSGE {
			return n, tooManyEntries(entries, r.maxSGE)
		}
		if used+entries > len(r.sges) {
			break
		}
		c := &r.wrs[n]
		*c = C.struct_ibv_recv_wr{wr_id: C.uint64_t(wrs[n].ID), num_sge: C.int(entries)}
		if entries > 0 {
			copyEntries(r.sges[used:], wrs[n].SGL)
			c.sg_list = &r.sges[used]
			used += entries
		}
		if n > 0 {
			r.wrs[n-1].next = c
		}
		n++
	}
	return n, nil
}

// post posts receives to qp or srq, whichever is not nil. It returns how many were taken, and
// the error of the one after them.
func (r *receives) post(wrs []verbs.RecvWR, qp *C.struct_ibv_qp, srq *C.struct_ibv_srq) (int, error) {
	done := 0
	for done < len(wrs) {
		n, bad := r.fill(wrs[done:])
		if n > 0 {
			verb, result := "ibv_post_recv", C.int64_t(0)
			if srq != nil {
				verb, result = "ibv_post_srq_recv", C.vb_post_srq_recv(cAddress(srq), cAddress(&r.wrs[0]))
			} else {
				result = C.vb_post_recv(cAddress(qp), cAddress(&r.wrs[0]))
			}
			taken, err := postResult(verb, result, n)
			done += taken
			if err != nil {
				bad = err
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// PostRecv implements [verbs.QP].
func (q *queuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.open("post receive"); err != nil {
		return 0, err
	}
	switch {
	case q.srq != nil:
		return 0, fmt.Errorf("post receive on queue pair %#x: post to its shared receive queue instead: %w", q.num, verbs.ErrInvalid)
	case q.state == verbs.QPReset:
		return 0, fmt.Errorf("post receive on queue pair %#x in state %v: it must be Init or later: %w", q.num, q.state, verbs.ErrState)
	}
	n, err := q.recvs.post(wrs, q.c, nil)
	if err != nil {
		return n, fmt.Errorf("post receive %d of %d on queue pair %#x of %s: %w", n+1, len(wrs), q.num, q.pd.device.info.Name, err)
	}
	return n, nil
}
