package roce

import (
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// What the C library needs of the device.
var (
	_ cverbs.PD = (*protectionDomain)(nil)
	_ cverbs.MR = (*memoryRegion)(nil)
	_ cverbs.CQ = (*completionQueue)(nil)
	_ cverbs.QP = (*queuePair)(nil)
)

type queuePair struct {
	pd        *protectionDomain
	init      verbs.QPInit
	num       uint32
	transport *transport.QP
	sendCQ    *completionQueue // nil: it has xrc
	recvCQ    *completionQueue // nil: it has xrc
	srq       *sharedReceiveQueue
	xrc       *xrcDomain // of XRCRecv
	shard     *shard
	path      path                  // nil until the transition to RTR
	source    admission.Source      // of packets that come by UDP
	ready     fifo.Node[*queuePair] // in shard.ready or shard.unacknowledged
	ack       delayedAck
	timer     timers.Timer[*queuePair]
	groups    int // multicast groups that it is attached to
	closed    bool
}

// CreateQP implements verbs.PD.
func (p *protectionDomain) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const op = "create queue pair"
	d := p.device
	if init.XRCDomain != nil && init.Type != verbs.XRCRecv {
		return nil, fmt.Errorf("%s: XRCDomain needs the type XRCRecv, not %v: %w", op, init.Type, verbs.ErrInvalid)
	}
	if init.Type == verbs.SRD {
		return p.createSRD(&init)
	}
	if init.UnsolicitedWriteRecv {
		return nil, fmt.Errorf("%s: UnsolicitedWriteRecv needs an SRD queue pair, not %v: %w", op, init.Type, verbs.ErrInvalid)
	}
	if init.Type < 0 || !d.transports().Has(init.Type) {
		return nil, fmt.Errorf("%s: device %s does not have the transport service %v: %w", op, d.cfg.Name, init.Type, verbs.ErrNotSupported)
	}
	switch init.Type {
	case verbs.XRCSend:
		init.SRQ, init.RecvCQ, init.MaxRecvWR, init.MaxRecvSGE = nil, init.SendCQ, 0, 0
	case verbs.XRCRecv:
		init = verbs.QPInit{Type: init.Type, XRCDomain: init.XRCDomain}
	}
	if init.SRQ != nil {
		init.MaxRecvWR, init.MaxRecvSGE = 0, 0 // ibv_create_qp(3) ignores them
	}
	for _, l := range []struct {
		what       string
		value, max int
	}{
		{"send requests", init.MaxSendWR, maxQPWR}, {"receives", init.MaxRecvWR, maxQPWR},
		{"scatter-gather entries of a send request", init.MaxSendSGE, maxSGE},
		{"scatter-gather entries of a receive", init.MaxRecvSGE, maxSGE},
		{"bytes inline", init.MaxInline, maxInline},
	} {
		if l.value < 0 || l.value > l.max {
			return nil, fmt.Errorf("%s: %d %s requested, must be from 0 to %d: %w", op, l.value, l.what, l.max, verbs.ErrLimit)
		}
	}
	sendCQ, recvCQ, err := d.queuesOf(op, &init)
	if err != nil {
		return nil, err
	}
	var srq *sharedReceiveQueue
	if init.SRQ != nil {
		var ok bool
		if srq, ok = init.SRQ.(*sharedReceiveQueue); !ok || srq.pd.device != d {
			return nil, fmt.Errorf("%s: the shared receive queue does not belong to device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkQueuePairs(op); err != nil {
		return nil, err
	}
	var x *xrcDomain
	if init.Type == verbs.XRCRecv {
		if x, err = d.xrcDomainOf(op, init.XRCDomain); err != nil {
			return nil, err
		}
	} else if sendCQ.closed || recvCQ.closed || srq != nil && srq.closed {
		return nil, fmt.Errorf("%s: its completion queue or shared receive queue: %w", op, verbs.ErrClosed)
	}
	s, err := d.shardFor(init.Type, sendCQ, srq)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	q := &queuePair{pd: p, shard: s, init: init, num: d.freeQPN(s), sendCQ: sendCQ, recvCQ: recvCQ, srq: srq, xrc: x}
	q.ready.Value, q.timer.Owner = q, q
	cfg := transport.Config{
		Type: init.Type, PortMTU: pathMTU(d.cfg.InterfaceMTU), CheckAH: p.checkAH, Bind: p.findBind, Window: d.window(),
		Adaptive: init.AdaptiveRetransmission, SilenceTimeout: init.SilenceTimeout,
		Num: q.num, Domain: p.id, Memory: d.mu.memory,
		SendDepth: init.MaxSendWR, MaxSendSGE: init.MaxSendSGE, MaxInline: init.MaxInline,
		SignalAll: init.SignalAll, Counters: &s.mu.counters, RNRWaiters: &s.mu.rnrWaiters,
		Guard: admission.Guard{Keys: &d.admission.Keys, Host: func() netip.Addr {
			return q.transport.Attr().Address.DGID.Addr()
		}},
		Event:   func(t verbs.EventType) { d.report(verbs.Event{Type: t, QPN: q.num}) },
		Revoked: q.revoked,
	}
	if x != nil {
		cfg.XRC = x.queues
		x.refs++
	} else {
		cfg.Send, cfg.Recv = sendCQ.completerFor(s), recvCQ.completerFor(s)
		sendCQ.refs++
		recvCQ.refs++
	}
	switch {
	case srq != nil:
		cfg.RecvQueue = srq.queue
		srq.refs++
	case init.Type <= verbs.UD:
		cfg.RecvQueue = transport.NewRecvQueue(d.mu.memory, p.id, init.MaxRecvWR, init.MaxRecvSGE)
	}
	q.transport = transport.New(cfg)
	d.mu.queuePairs[q.num] = q
	p.refs++
	return q, nil
}

// queuesOf returns the completion queues that init names. An XRC receive queue pair has none.
func (d *Device) queuesOf(op string, init *verbs.QPInit) (send, recv *completionQueue, err error) {
	if init.Type == verbs.XRCRecv {
		return nil, nil, nil
	}
	send, recv = asCompletionQueue(init.SendCQ), asCompletionQueue(init.RecvCQ)
	if send == nil || recv == nil || send.device != d || recv.device != d {
		return nil, nil, fmt.Errorf("%s: both completion queues must belong to device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
	}
	return send, recv, nil
}

// checkQueuePairs returns an error if the domain cannot have another queue pair.
func (p *protectionDomain) checkQueuePairs(op string) error {
	d := p.device
	if err := p.checkOpen(op); err != nil {
		return err
	}
	return d.checkRoom(op, len(d.mu.queuePairs)+len(d.mu.srdPairs), d.limits.queuePairs, "queue pairs")
}

// freeQPN returns the next free number for a queue pair of that shard. A number is not used
// again soon, so that a late packet for a closed queue pair meets none, and the next number
// cannot be predicted. 0 and 1 are for management (IBTA 3.3), and the last one for multicast
// groups.
func (d *Device) freeQPN(s *shard) uint32 {
	for {
		n := d.admission.Numbers.Next()
		if d.cfg.EFA {
			n = n >> 8 &^ shardBits // its numbers have 16 bits
		}
		n |= uint32(s.slot)
		if d.mu.queuePairs[n] == nil && d.mu.srdPairs[n] == nil && n > 1 && n != verbs.MulticastQPN {
			return n
		}
	}
}

// lock takes the lock of the queue pair's shard. The caller unlocks it.
func (q *queuePair) lock() *shard {
	q.shard.mu.Lock()
	return q.shard
}

func (q *queuePair) Num() uint32        { return q.num }
func (q *queuePair) Type() verbs.QPType { return q.init.Type }

func (q *queuePair) checkOpen(op string) error {
	if q.closed {
		return fmt.Errorf("%s on queue pair %#x: %w", op, q.num, verbs.ErrClosed)
	}
	return q.pd.device.broken(op)
}

// Modify implements verbs.QP.
func (q *queuePair) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.checkOpen("modify"); err != nil {
		return err
	}
	toRTR := mask&verbs.QPAttrState != 0 && attr.State == verbs.QPReadyToReceive
	var p path
	var from admission.Source
	if toRTR && (q.init.Type == verbs.UD || mask&verbs.QPAttrAddress != 0) {
		var err error
		if p, from, err = q.choosePath(&attr); err != nil {
			return fmt.Errorf("modify queue pair %#x: attribute Address: %w", q.num, err)
		}
	}
	q.sendDelayedAck()
	if err := q.transport.Modify(attr, mask); err != nil {
		return err
	}
	if toRTR || q.transport.State() == verbs.QPReset {
		q.setPath(p, from)
	}
	s := q.shard
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.QPReset {
		q.discardCompletions()
	}
	s.activate(q)
	s.transmit(d.now())
	return nil
}

// discardCompletions removes the queue pair's completions. Those of XRC shared receive queues stay.
func (q *queuePair) discardCompletions() {
	if q.xrc == nil {
		q.shard.discardCompletions(q.num, q.sendCQ, q.recvCQ)
	}
}

// revoked is transport.Config.Revoked.
func (q *queuePair) revoked(mem []byte) {
	if q.path != nil {
		q.path.revoke(mem)
	}
}

// ExpectKey implements optional.ExpectKeyQP.
func (q *queuePair) ExpectKey(rkey uint32) error {
	s := q.lock()
	defer s.mu.Unlock()
	if err := q.checkOpen("expect a key"); err != nil {
		return err
	}
	q.transport.ExpectKey(rkey)
	return nil
}

// ActAsAdapter implements cverbs.QP.
func (q *queuePair) ActAsAdapter() {
	defer q.lock().mu.Unlock()
	q.transport.ActAsAdapter()
}

// ModifiesPromptly tells package rdma that Modify does not wait.
func (*queuePair) ModifiesPromptly() {}

// Query implements verbs.QP.
func (q *queuePair) Query() (verbs.QPAttr, error) {
	s := q.lock()
	defer s.mu.Unlock()
	if err := q.checkOpen("query"); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.transport.Attr(), nil
}

// PostSend implements verbs.QP.
func (q *queuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	s := q.lock()
	defer s.mu.Unlock()
	if err := q.checkOpen("post send"); err != nil {
		return 0, err
	}
	n, err := q.transport.PostSend(wrs)
	if n > 0 {
		now := s.device.now()
		q.noteReply(now)
		s.activate(q)
		s.transmit(now)
		if s.mu.wakesAt != 0 && q.waitsForRoom() {
			s.wake() // who waits at the sockets has not asked to be woken for room
		}
	}
	return n, err
}

// waitsForRoom reports whether packets wait for room in shared memory.
func (q *queuePair) waitsForRoom() bool {
	if q.path == nil {
		return false
	}
	shared := q.path.channel()
	return shared != nil && shared.WaitsForRoom()
}

// PostRecv implements verbs.QP.
func (q *queuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s := q.lock()
	defer s.mu.Unlock()
	if err := q.checkOpen("post receive"); err != nil {
		return 0, err
	}
	return q.transport.PostRecv(wrs)
}

// Close implements verbs.QP.
func (q *queuePair) Close() error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed {
		return nil
	}
	if q.groups > 0 {
		return fmt.Errorf("close queue pair %#x: it is attached to %d multicast groups; detach it first: %w", q.num, q.groups, verbs.ErrInUse)
	}
	q.closed = true
	q.sendDelayedAck()
	q.transport.Close()
	q.setPath(nil, admission.Source{})
	delete(d.mu.queuePairs, q.num)
	for _, s := range d.mu.list {
		for _, e := range s.endpoints {
			if e.last == q {
				e.last = nil
			}
		}
	}
	q.discardCompletions() // as adapters do
	q.pd.refs--
	if q.xrc != nil {
		q.xrc.refs--
	} else {
		q.sendCQ.refs--
		q.recvCQ.refs--
	}
	if q.srq != nil {
		q.srq.refs--
	}
	return nil
}
