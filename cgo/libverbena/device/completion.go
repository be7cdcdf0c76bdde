//go:build linux && cgo && verbs

package main

// #cgo noescape vd_completion
// #cgo nocallback vd_completion
// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// pollBatch is the largest number of completions of one poll of the device.
const pollBatch = 32

type completionQueue struct {
	cverbs.CQ
	context *deviceContext
	c       unsafe.Pointer

	mu     sync.Mutex // guards the rest
	wcs    [pollBatch]verbs.WC
	extras []verbs.WCExtra // of an extended queue
	kept   int             // what an extended queue has taken for the program to read later
}

var completionQueues table[completionQueue]

func (q *completionQueue) owner() *deviceContext { return q.context }

func (q *completionQueue) close() error {
	q.context.wait.sleep() // the thread that polls may do so for this queue
	if err := q.Close(); err != nil {
		return err
	}
	q.context.mu.Lock()
	defer q.context.mu.Unlock()
	delete(q.context.queues, q.CQ)
	return nil
}

// unread returns how many completions the program has not read. An extended queue takes several at
// a time from the device: they count until it polls the device again.
func (q *completionQueue) unread() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.kept + q.Pending()
}

//export vd_create_cq
func vd_create_cq(handle C.uint32_t, cq unsafe.Pointer, cqe C.int, flags C.uint64_t, made *C.struct_vd_new_object) C.int {
	c := contexts.get(uint32(handle))
	if c == nil {
		return noSuch
	}
	var fields verbs.WCFields
	if flags&C.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0 {
		fields |= verbs.WCTimestamp
	}
	if flags&C.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0 {
		fields |= verbs.WCWallClock
	}
	if c.device.isEFA() {
		fields |= verbs.WCSource
	}
	created, err := c.device.CreateCQ(verbs.CQInit{Capacity: int(cqe), Fields: fields})
	if err != nil {
		return errnoOf(err)
	}
	v := created.(cverbs.CQ)
	v.OnCompletion(func() { C.vd_completion(cq) })
	q := &completionQueue{CQ: v, context: c, c: cq}
	if fields != 0 {
		q.extras = make([]verbs.WCExtra, pollBatch)
	}
	made.capacity = C.uint32_t(v.Capacity())
	c.mu.Lock()
	c.queues[v] = q
	c.mu.Unlock()
	return register(C.VD_CQ, &completionQueues, q, &made.handle)
}

//export vd_resize_cq
func vd_resize_cq(cq C.uint32_t, cqe C.int, capacity *C.uint32_t) C.int {
	q := completionQueues.get(uint32(cq))
	if q == nil {
		return noSuch
	}
	if err := q.Resize(int(cqe)); err != nil {
		return errnoOf(err)
	}
	*capacity = C.uint32_t(q.Capacity())
	return 0
}

//export vd_arm_cq
func vd_arm_cq(cq C.uint32_t, solicited C.int) C.int {
	q := completionQueues.get(uint32(cq))
	if q == nil {
		return noSuch
	}
	return errnoOf(q.context.wait.arm(q.CQ, solicited != 0))
}

//export vd_poll_for_event
func vd_poll_for_event(context C.uint32_t, events *C.uint32_t, seen C.uint32_t) {
	if c := contexts.get(uint32(context)); c != nil {
		c.wait.poll((*uint32)(events), uint32(seen))
	}
}

//export vd_event_awaited
func vd_event_awaited(context C.uint32_t) {
	if c := contexts.get(uint32(context)); c != nil {
		c.wait.woken()
	}
}

//export vd_poll_cq
func vd_poll_cq(cq C.uint32_t, most C.int, to *C.struct_ibv_wc, extras *C.struct_vd_extra) C.int {
	q := completionQueues.get(uint32(cq))
	if q == nil {
		return -noSuch
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	done := 0
	for want := int(most); done < want; {
		n, err := q.poll(min(want-done, pollBatch))
		if err != nil {
			if done > 0 {
				break
			}
			return -errnoOf(err)
		}
		for i := range n {
			convert(at(to, done+i), &q.wcs[i])
			if q.extras != nil {
				convertExtra(at(to, done+i), extras, done+i, &q.wcs[i], &q.extras[i])
			}
		}
		done += n
		if n < pollBatch {
			break
		}
	}
	if q.kept = 0; extras != nil {
		q.kept = max(done-1, 0) // the program reads the first one now
	}
	return C.int(done)
}

// convertExtra converts what a completion has besides: to the i-th of extras, if any, and to the
// field slid, where an EFA has the number of the sender's address handle. Other devices have no SRD,
// and zero in both fields.
func convertExtra(to *C.struct_ibv_wc, extras *C.struct_vd_extra, i int, wc *verbs.WC, x *verbs.WCExtra) {
	if fromSRD(wc) {
		to.slid = C.uint16_t(x.SourceAH)
	}
	if extras != nil {
		e := C.struct_vd_extra{ticks: C.uint64_t(x.Timestamp), wall_clock: C.uint64_t(x.WallClock), unsolicited: C.bool(wc.Unsolicited)}
		*(*verbs.GID)(unsafe.Pointer(&e.sgid)) = x.SourceGID
		*at(extras, i) = e
	}
}

// poll polls the device for at most n completions. The lock is held.
func (q *completionQueue) poll(n int) (int, error) {
	if q.extras != nil {
		return q.CQ.(verbs.ExtendedCQ).PollExtended(q.wcs[:n], q.extras[:n])
	}
	return q.Poll(q.wcs[:n])
}

// at returns the item of a C array.
func at[T any](array *T, i int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(array), uintptr(i)*unsafe.Sizeof(*array)))
}

var wcOpcodes = [...]C.enum_ibv_wc_opcode{
	verbs.WCSend: C.IBV_WC_SEND, verbs.WCWrite: C.IBV_WC_RDMA_WRITE, verbs.WCRead: C.IBV_WC_RDMA_READ,
	verbs.WCCompareSwap: C.IBV_WC_COMP_SWAP, verbs.WCFetchAdd: C.IBV_WC_FETCH_ADD,
	verbs.WCRecv: C.IBV_WC_RECV, verbs.WCRecvWriteImm: C.IBV_WC_RECV_RDMA_WITH_IMM,
	verbs.WCLocalInvalidate: C.IBV_WC_LOCAL_INV, verbs.WCBindMW: C.IBV_WC_BIND_MW,
	verbs.WCAtomicWrite: C.IBV_WC_ATOMIC_WRITE,
}

// Mellanox's adapters report the kind of network header of a datagram in the field for the
// service level, which RoCE does not have. UCX relies on that.
const (
	headerIPv6 = 1
	headerIPv4 = 2
	overUDP    = 8
)

// convert converts a completion.
func convert(to *C.struct_ibv_wc, wc *verbs.WC) {
	*to = C.struct_ibv_wc{
		wr_id: C.uint64_t(wc.ID), status: C.enum_ibv_wc_status(wc.Status), opcode: wcOpcodes[wc.Opcode],
		vendor_err: C.uint32_t(wc.VendorError), byte_len: C.uint32_t(wc.Bytes),
		qp_num: C.uint32_t(wc.QPN), src_qp: C.uint32_t(wc.SrcQPN),
		slid: C.uint16_t(wc.SrcUDPPort), // for VD_HAS_UDP_PORT
	}
	if wc.HasGRH {
		to.wc_flags |= C.IBV_WC_GRH
		if to.sl = overUDP | headerIPv6; wc.IPv4 {
			to.sl = overUDP | headerIPv4
		}
	}
	switch {
	case wc.HasImm:
		to.wc_flags |= C.IBV_WC_WITH_IMM
		binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&to.anon0))[:], wc.Imm)
	case wc.InvalidatedRKey != 0:
		to.wc_flags |= C.IBV_WC_WITH_INV
		*(*uint32)(unsafe.Pointer(&to.anon0)) = wc.InvalidatedRKey
	}
}
