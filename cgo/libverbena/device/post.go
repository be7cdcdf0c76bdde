//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/verbs"
)

// postBatch is the largest number of requests of one post to the device.
const postBatch = 64

// opcodeOf reports false for an opcode that package verbs does not have.
func opcodeOf(c C.enum_ibv_wr_opcode) (op verbs.Opcode, ok bool) {
	switch c {
	case C.IBV_WR_SEND:
		return verbs.OpSend, true
	case C.IBV_WR_SEND_WITH_IMM:
		return verbs.OpSendImm, true
	case C.IBV_WR_RDMA_WRITE:
		return verbs.OpWrite, true
	case C.IBV_WR_RDMA_WRITE_WITH_IMM:
		return verbs.OpWriteImm, true
	case C.IBV_WR_RDMA_READ:
		return verbs.OpRead, true
	case C.IBV_WR_ATOMIC_CMP_AND_SWP:
		return verbs.OpCompareSwap, true
	case C.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return verbs.OpFetchAdd, true
	case C.IBV_WR_SEND_WITH_INV:
		return verbs.OpSendInvalidate, true
	case C.IBV_WR_LOCAL_INV:
		return verbs.OpLocalInvalidate, true
	case C.IBV_WR_BIND_MW:
		return verbs.OpBindMW, true
	case C.IBV_WR_ATOMIC_WRITE:
		return verbs.OpAtomicWrite, true
	}
	return 0, false
}

// sends is memory for a batch of send requests.
type sends struct {
	service verbs.QPType
	maxSGE  int // of the device
	from    []*C.struct_ibv_send_wr
	wrs     []verbs.SendWR
	entries []verbs.SGE
	binds   []verbs.MWBind
}

// scatterGather appends the entries of a request to a batch's, and returns them. most bounds them:
// more are not read.
func scatterGather(to *[]verbs.SGE, list *C.struct_ibv_sge, n C.int, most int) ([]verbs.SGE, error) {
	if n < 0 || int(n) > most {
		return nil, fmt.Errorf("num_sge is %d; it must be from 0 to %d: %w", n, most, verbs.ErrInvalid)
	}
	first := len(*to)
	for _, e := range unsafe.Slice(list, n) {
		*to = append(*to, verbs.SGE{Addr: uint64(e.addr), Length: uint32(e.length), LKey: uint32(e.lkey)})
	}
	return (*to)[first:], nil
}

func sendFlags(flags C.uint) (to verbs.SendFlags) {
	if flags&C.IBV_SEND_SIGNALED != 0 {
		to |= verbs.FlagSignaled
	}
	if flags&C.IBV_SEND_SOLICITED != 0 {
		to |= verbs.FlagSolicited
	}
	if flags&C.IBV_SEND_FENCE != 0 {
		to |= verbs.FlagFence
	}
	if flags&C.IBV_SEND_INLINE != 0 {
		to |= verbs.FlagInline
	}
	return to
}

// add appends a request to the batch.
func (s *sends) add(c *C.struct_ibv_send_wr) (err error) {
	if s.service == verbs.SRD {
		return s.addSRD(c)
	}
	op, ok := opcodeOf(c.opcode)
	if !ok {
		return fmt.Errorf("software devices do not have opcode %d: %w", c.opcode, verbs.ErrInvalid)
	}
	if c.send_flags&C.IBV_SEND_IP_CSUM != 0 {
		return fmt.Errorf("software devices do not have IBV_SEND_IP_CSUM: %w", verbs.ErrInvalid)
	}
	wr := verbs.SendWR{ID: uint64(c.wr_id), Op: op, Flags: sendFlags(c.send_flags)}
	if op != verbs.OpBindMW && op != verbs.OpLocalInvalidate { // whose sg_list need not be set
		if wr.SGL, err = scatterGather(&s.entries, c.sg_list, c.num_sge, s.maxSGE); err != nil {
			return err
		}
	}
	if s.service == verbs.XRCSend {
		wr.RemoteSRQN = *(*uint32)(unsafe.Pointer(&c.qp_type))
	}
	args := unsafe.Pointer(&c.wr)
	switch op {
	case verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpAtomicWrite:
		a := (*abi.RDMAArgs)(args)
		wr.RemoteAddr, wr.RKey = a.RemoteAddr, a.RKey
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		a := (*abi.AtomicArgs)(args)
		wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = a.RemoteAddr, a.RKey, a.CompareAdd, a.Swap
	case verbs.OpSend, verbs.OpSendImm:
		if s.service == verbs.UD {
			if err := addressed(&wr, (*abi.DatagramArgs)(args)); err != nil {
				return err
			}
		}
	case verbs.OpBindMW:
		bind, err := bindOf((*abi.BindArgs)(unsafe.Pointer(&c.anon1)))
		if err != nil {
			return err
		}
		s.binds = append(s.binds, bind)
		wr.Bind = &s.binds[len(s.binds)-1]
	}
	switch op {
	case verbs.OpSendImm, verbs.OpWriteImm:
		wr.Imm = binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&c.anon0))[:])
	case verbs.OpSendInvalidate, verbs.OpLocalInvalidate:
		wr.InvalidateRKey = *(*uint32)(unsafe.Pointer(&c.anon0))
	}
	s.wrs, s.from = append(s.wrs, wr), append(s.from, c)
	return nil
}

func addressed(wr *verbs.SendWR, a *abi.DatagramArgs) error {
	if a.AH == nil {
		return fmt.Errorf("a datagram has no address handle: %w", verbs.ErrInvalid)
	}
	ah := addressHandles.get(uint32((*C.struct_ibv_ah)(a.AH).handle))
	if ah == nil {
		return fmt.Errorf("a datagram's address handle does not exist: %w", verbs.ErrInvalid)
	}
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.AH, a.QPN, a.QKey
	return nil
}

func bindOf(a *abi.BindArgs) (bind verbs.MWBind, err error) {
	if a.MW == nil || a.MR == nil {
		return bind, fmt.Errorf("a bind names no memory window, or no memory region: %w", verbs.ErrInvalid)
	}
	w, m := windows.get(uint32((*C.struct_ibv_mw)(a.MW).handle)), regions.get(uint32((*C.struct_ibv_mr)(a.MR).handle))
	if w == nil || m == nil {
		return bind, fmt.Errorf("a bind's memory window or region does not exist: %w", verbs.ErrInvalid)
	}
	return verbs.MWBind{
		MW: w.MW, MR: m.MR, RKey: a.RKey, Addr: a.Addr, Length: a.Length,
		Access: abi.Access(a.Access) &^ verbs.AccessLocalWrite, // the region's
	}, nil
}

// post posts the batch, and forgets it. It returns the request that was refused, if any.
func (s *sends) post(qp verbs.QP) (bad *C.struct_ibv_send_wr, err error) {
	n, err := qp.PostSend(s.wrs)
	if err != nil {
		bad = s.from[n]
	}
	s.reset()
	return bad, err
}

// reset forgets the batch.
func (s *sends) reset() {
	clear(s.wrs) // of its pointers
	s.wrs, s.from, s.entries, s.binds = s.wrs[:0], s.from[:0], s.entries[:0], s.binds[:0]
}

//export vd_post_send
func vd_post_send(qp C.uint32_t, wr *C.struct_ibv_send_wr, bad **C.struct_ibv_send_wr) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		*bad = wr
		return noSuch
	}
	q.sendLock.Lock()
	defer q.sendLock.Unlock()
	for wr != nil {
		var wrong error
		for wrong == nil && wr != nil && len(q.sends.wrs) < postBatch {
			if wrong = q.sends.add(wr); wrong == nil {
				wr = wr.next
			}
		}
		if len(q.sends.wrs) > 0 {
			if refused, err := q.sends.post(q.QP); err != nil {
				*bad = refused
				return errnoOf(err)
			}
		}
		if wrong != nil {
			q.sends.reset()
			*bad = wr
			return errnoOf(fmt.Errorf("post send to queue pair %#x: %w", q.Num(), wrong))
		}
	}
	return 0
}

// receives is memory for a batch of receives.
type receives struct {
	maxSGE  int // of the device
	from    []*C.struct_ibv_recv_wr
	wrs     []verbs.RecvWR
	entries []verbs.SGE
}

// receiver is a queue pair or a shared receive queue.
type receiver interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// post posts a list of receives.
func (r *receives) post(to receiver, wr *C.struct_ibv_recv_wr, bad **C.struct_ibv_recv_wr) C.int {
	for wr != nil {
		r.wrs, r.from, r.entries = r.wrs[:0], r.from[:0], r.entries[:0]
		var wrong error
		for wr != nil && len(r.wrs) < postBatch {
			var list []verbs.SGE
			if list, wrong = scatterGather(&r.entries, wr.sg_list, wr.num_sge, r.maxSGE); wrong != nil {
				break
			}
			r.wrs, r.from = append(r.wrs, verbs.RecvWR{ID: uint64(wr.wr_id), SGL: list}), append(r.from, wr)
			wr = wr.next
		}
		if len(r.wrs) > 0 {
			if n, err := to.PostRecv(r.wrs); err != nil {
				*bad = r.from[n]
				return errnoOf(err)
			}
		}
		if wrong != nil {
			*bad = wr
			return errnoOf(fmt.Errorf("post receive: %w", wrong))
		}
	}
	return 0
}

//export vd_post_recv
func vd_post_recv(qp C.uint32_t, wr *C.struct_ibv_recv_wr, bad **C.struct_ibv_recv_wr) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		*bad = wr
		return noSuch
	}
	q.recvLock.Lock()
	defer q.recvLock.Unlock()
	return q.receives.post(q.QP, wr, bad)
}

//export vd_post_srq_recv
func vd_post_srq_recv(srq C.uint32_t, wr *C.struct_ibv_recv_wr, bad **C.struct_ibv_recv_wr) C.int {
	q := sharedReceiveQueues.get(uint32(srq))
	if q == nil {
		*bad = wr
		return noSuch
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.receives.post(q.SRQ, wr, bad)
}
