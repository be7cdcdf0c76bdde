//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

type queuePair struct {
	verbs.QP
	context  *deviceContext
	c        unsafe.Pointer
	received *completionQueue
	// closeShared closes an XRC receive queue pair, which others may have open.
	closeShared func() error

	sendLock sync.Mutex // guards sends
	sends    sends
	recvLock sync.Mutex // guards receives
	receives receives

	groupLock sync.Mutex
	groups    map[verbs.GID]struct{} // that it is attached to
}

var queuePairs table[queuePair]

func (q *queuePair) owner() *deviceContext { return q.context }

func (q *queuePair) close() error {
	end := q.Close
	if q.closeShared != nil {
		end = q.closeShared
	}
	if err := end(); err != nil {
		return err
	}
	q.context.mu.Lock()
	defer q.context.mu.Unlock()
	n := q.Num()
	if rest := slices.DeleteFunc(q.context.byNumber[n], func(other *queuePair) bool { return other == q }); len(rest) > 0 {
		q.context.byNumber[n] = rest
	} else {
		delete(q.context.byNumber, n)
	}
	return nil
}

type sharedReceiveQueue struct {
	verbs.SRQ
	context *deviceContext
	c       unsafe.Pointer
	limit   atomic.Uint32 // that is armed; zero: none
	xrc     *xrcDomain    // of an XRC queue

	mu       sync.Mutex // guards receives
	receives receives
}

var sharedReceiveQueues table[sharedReceiveQueue]

func (q *sharedReceiveQueue) owner() *deviceContext { return q.context }

func (q *sharedReceiveQueue) close() error {
	if err := q.Close(); err != nil {
		return err
	}
	if q.xrc != nil {
		q.xrc.use(-1)
	}
	q.context.mu.Lock()
	defer q.context.mu.Unlock()
	delete(q.context.receivers, q.SRQ)
	return nil
}

//export vd_create_srq
func vd_create_srq(pd, xrcd, cq C.uint32_t, srq unsafe.Pointer, attr *C.struct_ibv_srq_attr, made *C.struct_vd_new_object) C.int {
	p := domains.get(uint32(pd))
	if p == nil {
		return noSuch
	}
	init := verbs.SRQInit{MaxWR: int(attr.max_wr), MaxSGE: int(attr.max_sge)}
	var x *xrcDomain
	if xrcd != 0 {
		x = openXRCDomains.get(uint32(xrcd))
		q := completionQueues.get(uint32(cq))
		if x == nil || q == nil {
			return noSuch
		}
		init.XRCDomain, init.CQ = x.XRCDomain, q.CQ
	}
	v, err := p.CreateSRQ(init)
	if err != nil {
		return errnoOf(err)
	}
	if x != nil {
		x.use(1)
		made.number = C.uint32_t(v.(verbs.XRCSRQ).SRQNum())
	}
	q := &sharedReceiveQueue{SRQ: v, context: p.context, c: srq, xrc: x, receives: receives{maxSGE: p.context.device.attr.MaxSRQSGE}}
	p.context.mu.Lock()
	p.context.receivers[v] = q
	p.context.mu.Unlock()
	return register(C.VD_SRQ, &sharedReceiveQueues, q, &made.handle)
}

//export vd_arm_srq
func vd_arm_srq(srq, limit C.uint32_t) C.int {
	q := sharedReceiveQueues.get(uint32(srq))
	if q == nil {
		return noSuch
	}
	before := q.limit.Swap(uint32(limit))
	err := q.SetLimit(int(limit))
	if err != nil {
		q.limit.CompareAndSwap(uint32(limit), before)
	}
	return errnoOf(err)
}

//export vd_srq_limit
func vd_srq_limit(srq C.uint32_t, limit *C.uint32_t) C.int {
	q := sharedReceiveQueues.get(uint32(srq))
	if q == nil {
		return noSuch
	}
	*limit = C.uint32_t(q.limit.Load())
	return 0
}

var services = map[C.enum_ibv_qp_type]verbs.QPType{C.IBV_QPT_RC: verbs.RC, C.IBV_QPT_UC: verbs.UC, C.IBV_QPT_UD: verbs.UD, C.IBV_QPT_XRC_SEND: verbs.XRCSend, C.IBV_QPT_DRIVER: verbs.SRD}

//export vd_create_qp
func vd_create_qp(pd C.uint32_t, qp unsafe.Pointer, from *C.struct_vd_queue_pair_init, made *C.struct_vd_new_object) C.int {
	p := domains.get(uint32(pd))
	sendCQ, recvCQ := completionQueues.get(uint32(from.send_cq)), completionQueues.get(uint32(from.recv_cq))
	if p == nil || sendCQ == nil || recvCQ == nil {
		return noSuch
	}
	service, ok := services[from._type]
	if !ok {
		return errnoOf(fmt.Errorf("create queue pair: software devices do not have type %d: %w", from._type, verbs.ErrNotSupported))
	}
	init := verbs.QPInit{
		Type: service, SendCQ: sendCQ.CQ, RecvCQ: recvCQ.CQ,
		MaxSendWR: int(from.cap.max_send_wr), MaxRecvWR: int(from.cap.max_recv_wr),
		MaxSendSGE: int(from.cap.max_send_sge), MaxRecvSGE: int(from.cap.max_recv_sge),
		MaxInline: int(from.cap.max_inline_data), SignalAll: from.signal_all != 0, UnsolicitedWriteRecv: from.unsolicited != 0,
	}
	if from.srq != 0 {
		srq := sharedReceiveQueues.get(uint32(from.srq))
		if srq == nil {
			return noSuch
		}
		init.SRQ = srq.SRQ
	}
	if most := p.context.device.attr.MaxQPWR; service != verbs.SRD && init.MaxSendWR > 0 && init.MaxSendWR <= most {
		init.MaxSendWR = min(roomFor(init.MaxSendWR), most)
	}
	v, err := createQP(p, init)
	if err != nil {
		return errnoOf(err)
	}
	made.capacity = C.uint32_t(init.MaxSendWR)
	q := &queuePair{QP: v, context: p.context, c: qp, received: recvCQ, sends: sends{service: service, maxSGE: p.context.device.attr.MaxSGE}, receives: receives{maxSGE: p.context.device.attr.MaxSGE}}
	return registerQP(q, made)
}

// roomFor returns for how many send requests a queue pair has room if a program asks for n: more,
// as on adapters and rxe. Programs rely on it that ask the device to signal every n-th request only:
// if the acknowledgement is lost, the peer's answer is there before the completion.
func roomFor(n int) int { return 1 << bits.Len(uint(n)) }

// createQP creates a queue pair that does what programs know from adapters.
func createQP(pd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	q, err := pd.CreateQP(init)
	if c, ok := q.(cverbs.QP); ok { // SRD has no peer
		c.ActAsAdapter()
	}
	return q, err
}

// registerQP gives a queue pair its handle and its events.
func registerQP(q *queuePair, made *C.struct_vd_new_object) C.int {
	n := q.Num()
	made.number = C.uint32_t(n)
	q.context.mu.Lock()
	q.context.byNumber[n] = append(q.context.byNumber[n], q)
	q.context.mu.Unlock()
	return register(C.VD_QP, &queuePairs, q, &made.handle)
}

//export vd_modify_qp
func vd_modify_qp(qp C.uint32_t, from *C.struct_ibv_qp_attr, flags C.int) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		return noSuch
	}
	mask := abi.Mask(int32(flags))
	if unknown := int32(flags) &^ (abi.MaskFlags(mask) | C.IBV_QP_CUR_STATE); unknown != 0 {
		return errnoOf(fmt.Errorf("modify queue pair %#x: software devices do not have the attributes %#x of the mask: %w", q.Num(), unknown, verbs.ErrInvalid))
	}
	if flags&C.IBV_QP_CUR_STATE != 0 {
		now, err := q.Query()
		if err != nil {
			return errnoOf(err)
		}
		if now.State != verbs.QPState(from.cur_qp_state) {
			return errnoOf(fmt.Errorf("modify queue pair %#x: it is in %v, and cur_qp_state is %v: %w", q.Num(), now.State, verbs.QPState(from.cur_qp_state), verbs.ErrInvalid))
		}
	}
	to := abi.QPAttr(unsafe.Pointer(from))
	if mask&verbs.QPAttrAddress != 0 {
		var err error
		if to.Address, err = addressOf(&from.ah_attr); err != nil {
			return errnoOf(err)
		}
	}
	return errnoOf(q.Modify(to, mask))
}

//export vd_query_qp
func vd_query_qp(qp C.uint32_t, to *C.struct_ibv_qp_attr) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		return noSuch
	}
	a, err := q.Query()
	if err != nil {
		return errnoOf(err)
	}
	copyAttr(to, &a)
	return 0
}

// copyAttr converts the attributes of a queue pair.
func copyAttr(to *C.struct_ibv_qp_attr, a *verbs.QPAttr) {
	*to = C.struct_ibv_qp_attr{
		qp_state: C.enum_ibv_qp_state(a.State), cur_qp_state: C.enum_ibv_qp_state(a.State),
		path_mtu: C.enum_ibv_mtu(abi.MTUCode(a.PathMTU)), path_mig_state: C.IBV_MIG_MIGRATED,
		qkey: C.uint32_t(a.QKey), rq_psn: C.uint32_t(a.RQPSN), sq_psn: C.uint32_t(a.SQPSN), dest_qp_num: C.uint32_t(a.DestQPN),
		qp_access_flags: C.uint(abi.AccessFlags(a.Access)), pkey_index: C.uint16_t(a.PKeyIndex),
		max_rd_atomic: C.uint8_t(a.MaxInitReadAtomic), max_dest_rd_atomic: C.uint8_t(a.MaxDestReadAtomic),
		min_rnr_timer: C.uint8_t(a.MinRNRTimer), port_num: C.uint8_t(a.Port),
		timeout: C.uint8_t(a.Timeout), retry_cnt: C.uint8_t(a.RetryCount), rnr_retry: C.uint8_t(a.RNRRetry),
	}
	copyAddress(&to.ah_attr, &a.Address)
}

//export vd_attach_mcast
func vd_attach_mcast(qp C.uint32_t, group *C.union_ibv_gid, attach C.int) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		return noSuch
	}
	m, ok := q.QP.(verbs.MulticastQP)
	if !ok {
		return errnoOf(fmt.Errorf("attach queue pair %#x to a multicast group: it is not of UD: %w", q.Num(), verbs.ErrInvalid))
	}
	gid := *(*verbs.GID)(unsafe.Pointer(group))
	q.groupLock.Lock()
	defer q.groupLock.Unlock()
	if attach == 0 {
		err := m.DetachMulticast(gid, 0)
		if err == nil {
			delete(q.groups, gid)
		}
		return errnoOf(err)
	}
	if err := m.AttachMulticast(gid, 0); err != nil {
		return errnoOf(err)
	}
	if q.groups == nil {
		q.groups = make(map[verbs.GID]struct{})
	}
	q.groups[gid] = struct{}{}
	return 0
}

// leaveGroups detaches the queue pair from the groups that the program has not left.
func (q *queuePair) leaveGroups() {
	q.groupLock.Lock()
	defer q.groupLock.Unlock()
	for gid := range q.groups {
		_ = q.QP.(verbs.MulticastQP).DetachMulticast(gid, 0)
	}
}
