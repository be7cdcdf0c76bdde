//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

type queuePair struct {
	pd     *protectionDomain
	num    uint32
	init   verbs.QPInit
	sendCQ *completionQueue
	recvCQ *completionQueue
	srq    *sharedReceiveQueue

	mu    sync.Mutex
	c     *C.struct_ibv_qp // nil when closed
	state verbs.QPState    // the last state set; the device may have moved on to Error
	port  int
	sends sends
	recvs receives
}

var qpTypes = map[verbs.QPType]C.enum_ibv_qp_type{verbs.RC: C.IBV_QPT_RC, verbs.UC: C.IBV_QPT_UC, verbs.UD: C.IBV_QPT_UD}

// CreateQP implements [verbs.PD].
//
// AdaptiveRetransmission is ignored: adapters retransmit by Timeout and RetryCount.
func (p *protectionDomain) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const op = "create queue pair"
	d := p.device
	q := &queuePair{pd: p, port: 1}
	if err := q.check(init); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if err := q.use(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	var c C.struct_ibv_qp_init_attr
	c.send_cq, c.recv_cq = q.sendCQ.c, q.recvCQ.c
	if q.srq != nil {
		c.srq = q.srq.c
	}
	c.qp_type = qpTypes[init.Type]
	if init.SignalAll {
		c.sq_sig_all = 1
	}
	c.cap = C.struct_ibv_qp_cap{
		max_send_wr: C.uint32_t(q.init.MaxSendWR), max_recv_wr: C.uint32_t(q.init.MaxRecvWR),
		max_send_sge: C.uint32_t(q.init.MaxSendSGE), max_recv_sge: C.uint32_t(q.init.MaxRecvSGE),
		max_inline_data: C.uint32_t(q.init.MaxInline),
	}
	pair, verb, err := q.create(&c)
	if pair == nil {
		q.release()
		return nil, verbError(verb, fmt.Sprintf("%v with %d sends of %d entries, %d receives of %d entries, %d bytes inline on %s",
			init.Type, q.init.MaxSendWR, q.init.MaxSendSGE, q.init.MaxRecvWR, q.init.MaxRecvSGE, q.init.MaxInline, d.info.Name), err)
	}
	q.c, q.num = pair, uint32(pair.qp_num)
	q.sends = newSends(q.init.MaxSendWR, q.init.MaxSendSGE)
	if q.postsExtended() {
		q.sends.extended = newExtendedSends(q, int(c.cap.max_inline_data))
	}
	if q.srq == nil {
		q.recvs = newReceives(q.init.MaxRecvWR, q.init.MaxRecvSGE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pairs[q.num] = q
	return q, nil
}

// create makes the queue pair, and returns the name of the verb that it used.
func (q *queuePair) create(c *C.struct_ibv_qp_init_attr) (pair *C.struct_ibv_qp, verb string, err error) {
	d := q.pd.device
	d.numbers.RLock()
	defer d.numbers.RUnlock()
	switch {
	case q.init.Type == verbs.SRD:
		verb = "efadv_create_qp_ex"
		pair, err = q.createExtended(c)
	case q.postsExtended():
		verb = "ibv_create_qp_ex"
		pair, err = q.createExtended(c)
	default:
		verb = "ibv_create_qp"
		pair, err = C.vb_create_qp(q.pd.c, c)
	}
	return pair, verb, err
}

// check checks init, and sets the queue pair's init and queues.
func (q *queuePair) check(init verbs.QPInit) error {
	d := q.pd.device
	if err := d.checkService(&init); err != nil {
		return err
	}
	if init.SRQ != nil {
		init.MaxRecvWR, init.MaxRecvSGE = 0, 0
	}
	most := d.limitsOf(init.Type)
	for _, l := range []struct {
		what       string
		value, max int
	}{
		{"send requests", init.MaxSendWR, most.sendWR}, {"receives", init.MaxRecvWR, most.recvWR},
		{"scatter-gather entries of a send request", init.MaxSendSGE, most.sendSGE},
		{"scatter-gather entries of a receive", init.MaxRecvSGE, most.recvSGE},
		{"bytes inline", init.MaxInline, most.inline},
	} {
		if l.value < 0 || l.value > l.max {
			return fmt.Errorf("%d %s; at most %d are possible: %w", l.value, l.what, l.max, verbs.ErrLimit)
		}
	}
	init.MaxSendSGE, init.MaxRecvSGE = max(init.MaxSendSGE, 1), max(init.MaxRecvSGE, 1)
	var ok, ok2 bool
	q.sendCQ, ok = init.SendCQ.(*completionQueue)
	q.recvCQ, ok2 = init.RecvCQ.(*completionQueue)
	if !ok || !ok2 || q.sendCQ.device != d || q.recvCQ.device != d {
		return fmt.Errorf("both completion queues must belong to device %s: %w", d.info.Name, verbs.ErrInvalid)
	}
	if init.SRQ != nil {
		if q.srq, ok = init.SRQ.(*sharedReceiveQueue); !ok || q.srq.pd.device != d {
			return fmt.Errorf("the shared receive queue must belong to device %s: %w", d.info.Name, verbs.ErrInvalid)
		}
	}
	q.init = init
	return nil
}

// queueLimits are the limits of the queues of a queue pair.
type queueLimits struct{ sendWR, recvWR, sendSGE, recvSGE, inline int }

func (d *device) limitsOf(t verbs.QPType) queueLimits {
	a := &d.attr
	if t == verbs.SRD {
		return queueLimits{a.SRD.MaxSendWR, a.SRD.MaxRecvWR, a.SRD.MaxSendSGE, a.SRD.MaxRecvSGE, a.SRD.MaxInline}
	}
	return queueLimits{a.MaxQPWR, a.MaxQPWR, a.MaxSGE, a.MaxSGE, 1 << 16}
}

// use adds a reference to the protection domain and the queues; release removes them.
func (q *queuePair) use() error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ctx == nil || q.pd.closed:
		return fmt.Errorf("the protection domain of device %s: %w", d.info.Name, verbs.ErrClosed)
	case d.queues[q.sendCQ.key] != q.sendCQ, d.queues[q.recvCQ.key] != q.recvCQ,
		q.srq != nil && d.shared[q.srq.key] != q.srq:
		return fmt.Errorf("a completion queue or the shared receive queue: %w", verbs.ErrClosed)
	}
	q.pd.refs++
	q.sendCQ.refs++
	q.recvCQ.refs++
	if q.srq != nil {
		q.srq.refs++
	}
	return nil
}

func (q *queuePair) release() {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pairs[q.num] == q {
		delete(d.pairs, q.num)
	}
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	if q.srq != nil {
		q.srq.refs--
	}
}

func (q *queuePair) Num() uint32        { return q.num }
func (q *queuePair) Type() verbs.QPType { return q.init.Type }

func (q *queuePair) open(op string) error {
	if q.c == nil {
		return fmt.Errorf("%s on queue pair %#x: %w", op, q.num, verbs.ErrClosed)
	}
	return nil
}

// Close implements [verbs.QP].
func (q *queuePair) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return nil
	}
	if err := q.destroy(); err != nil {
		return err
	}
	q.c = nil
	q.sends.free()
	q.recvs.free()
	q.release()
	return nil
}

// destroy destroys the queue pair and drops its completions. Meanwhile no new queue pair is
// created: it could get the same number and lose its completions.
func (q *queuePair) destroy() error {
	d := q.pd.device
	d.numbers.Lock()
	defer d.numbers.Unlock()
	if err := d.checkDestroyed("ibv_destroy_qp", fmt.Sprintf("queue pair %#x of %s", q.num, d.info.Name), C.vb_destroy_qp(q.c)); err != nil {
		return err
	}
	q.sendCQ.dropCompletions(q.num)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.dropCompletions(q.num)
	}
	return nil
}
