package roce

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/roce/transport"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

type queuePair struct {
	pd        *protectionDomain
	init      verbs.QPInit
	num       uint32
	transport *transport.QP
	sendCQ    *completionQueue
	recvCQ    *completionQueue
	srq       *sharedReceiveQueue
	busy      bool
	closed    bool

	// path leads to the peer of a connection, from the transition to RTR on.
	path      path
	listening []*endpoint // whose packets the queue pair takes
	rx        arrivals
	self      bool // path leads back to the queue pair
}

// path is the way to a peer.
type path struct {
	endpoint *endpoint // nil: there is no path
	peer     netip.AddrPort
	flow     wire.Flow
}

// arrivals keeps what the checksum of packets begins with that come from where
// the last one came from.
type arrivals struct {
	endpoint *endpoint
	source   netip.AddrPort
	flow     wire.Flow
}

func (a *arrivals) from(e *endpoint, source netip.AddrPort) *wire.Flow {
	if a.source != source || a.endpoint != e {
		*a = arrivals{endpoint: e, source: source, flow: wire.NewFlow(source, e.socket.Addr())}
	}
	return &a.flow
}

// CreateQP implements verbs.PD.
func (p *protectionDomain) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const op = "create queue pair"
	d := p.device
	if init.Type < verbs.RC || init.Type > verbs.UD {
		return nil, fmt.Errorf("%s: device %s has no transport service %v: %w", op, d.cfg.Name, init.Type, verbs.ErrNotSupported)
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
			return nil, fmt.Errorf("%s: %d %s, at most %d are possible: %w", op, l.value, l.what, l.max, verbs.ErrLimit)
		}
	}
	sendCQ, ok := init.SendCQ.(*completionQueue)
	recvCQ, ok2 := init.RecvCQ.(*completionQueue)
	if !ok || !ok2 || sendCQ.device != d || recvCQ.device != d {
		return nil, fmt.Errorf("%s: its completion queues must both be of device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
	}
	var srq *sharedReceiveQueue
	if init.SRQ != nil {
		if srq, ok = init.SRQ.(*sharedReceiveQueue); !ok || srq.pd.device != d {
			return nil, fmt.Errorf("%s: its shared receive queue must be of device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.use(op); err != nil {
		return nil, err
	}
	if sendCQ.closed || recvCQ.closed || srq != nil && srq.closed {
		return nil, fmt.Errorf("%s: a queue that it is to use has been closed: %w", op, verbs.ErrClosed)
	}
	if len(d.queuePairs) >= maxQP {
		return nil, fmt.Errorf("%s: device %s has its limit of %d: %w", op, d.cfg.Name, maxQP, verbs.ErrLimit)
	}
	q := &queuePair{pd: p, init: init, num: d.freeQPN(), sendCQ: sendCQ, recvCQ: recvCQ, srq: srq}
	cfg := transport.Config{
		Type: init.Type, PortMTU: pathMTU(d.cfg.InterfaceMTU), CheckAH: p.checkAH, Window: d.window(),
		Adaptive: init.AdaptiveRetransmission,
		Num:      q.num, Domain: p.id, Memory: d.memory, Send: sendCQ, Recv: recvCQ,
		SendDepth: init.MaxSendWR, MaxSendSGE: init.MaxSendSGE, MaxInline: init.MaxInline,
		SignalAll: init.SignalAll, Counters: &d.counters,
		Event: func(t verbs.EventType) { d.tell(verbs.Event{Type: t, QPN: q.num}) },
	}
	if srq != nil {
		cfg.RecvQueue = srq.queue
		srq.refs++
	} else {
		cfg.RecvQueue = transport.NewRecvQueue(d.memory, p.id, init.MaxRecvWR, init.MaxRecvSGE)
	}
	q.transport = transport.New(cfg)
	d.queuePairs[q.num] = q
	p.refs++
	sendCQ.refs++
	recvCQ.refs++
	return q, nil
}

// freeQPN returns the next number that is free. Numbers are not used again
// soon, so that a packet for a queue pair of the past meets none. 0 and 1 are
// for management (IBTA 3.3).
func (d *Device) freeQPN() uint32 {
	for {
		d.nextQPN = (d.nextQPN + 1) & 0xffffff
		if _, taken := d.queuePairs[d.nextQPN]; !taken && d.nextQPN > 1 {
			return d.nextQPN
		}
	}
}

func (q *queuePair) Num() uint32        { return q.num }
func (q *queuePair) Type() verbs.QPType { return q.init.Type }

func (q *queuePair) open(op string) error {
	if q.closed {
		return fmt.Errorf("%s on queue pair %#x: %w", op, q.num, verbs.ErrClosed)
	}
	return nil
}

// Modify implements verbs.QP.
func (q *queuePair) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.open("modify"); err != nil {
		return err
	}
	var way path
	if mask&verbs.QPAttrAddress != 0 {
		var err error
		if way, err = d.path(attr.Address); err != nil {
			return fmt.Errorf("modify queue pair %#x: attribute Address: %w", q.num, err)
		}
		q.transport.SetWindow(way.endpoint.window)
		q.transport.SetSelf(q.leadsBack(&way, &attr))
	}
	if err := q.transport.Modify(attr, mask); err != nil {
		return err
	}
	switch q.transport.State() {
	case verbs.QPReset:
		q.path = path{}
		q.listen()
	case verbs.QPReadyToReceive:
		if way.endpoint != nil {
			q.path = way
			q.listen(way.endpoint)
		} else {
			q.listen(d.endpoints...) // a datagram may come by any address of the port
		}
	}
	d.activate(q)
	d.transmit(d.now())
	return nil
}

// path finds the way to a peer.
func (d *Device) path(a verbs.AddressAttr) (path, error) {
	if a.SGIDIndex < 0 || a.SGIDIndex >= len(d.endpoints) {
		return path{}, fmt.Errorf("SGIDIndex is %d, the GID table of device %s has the indices 0 to %d: %w", a.SGIDIndex, d.cfg.Name, len(d.endpoints)-1, verbs.ErrInvalid)
	}
	e := d.endpoints[a.SGIDIndex]
	addr := a.DGID.Addr()
	local := e.socket.Addr().Addr()
	if addr.Is4() != local.Is4() || addr.IsUnspecified() || addr.IsMulticast() {
		return path{}, fmt.Errorf("DGID %v cannot be reached from the GID at index %d, %v: choose an index whose GID is of the peer's family: %w", addr, a.SGIDIndex, local, verbs.ErrInvalid)
	}
	port := a.UDPPort
	if port == 0 {
		port = wire.UDPPort
	}
	peer := netip.AddrPortFrom(addr, port)
	return path{endpoint: e, peer: peer, flow: wire.NewFlow(e.socket.Addr(), peer)}, nil
}

// listen has the queue pair use these endpoints and no others.
func (q *queuePair) listen(endpoints ...*endpoint) {
	for _, e := range q.listening {
		e.users--
		if !q.self {
			e.takers--
		}
	}
	q.self = q.transport.Self()
	if q.busy {
		q.busy = false
		d := q.pd.device
		d.busy = slices.DeleteFunc(d.busy, func(o *queuePair) bool { return o == q })
	}
	q.listening, q.rx = endpoints, arrivals{}
	for _, e := range endpoints {
		e.users++
		if !q.self {
			e.takers++
		}
	}
}

// mayCome reports whether the queue pair takes packets that come this way: from
// its own peer only if it has one. The source port is the peer's to choose (annex
// A17.4.5).
func (q *queuePair) mayCome(e *endpoint, source netip.AddrPort) bool {
	if q.init.Type == verbs.UD {
		return len(q.listening) > 0
	}
	return !q.self && q.path.endpoint == e && q.path.peer.Addr() == source.Addr()
}

// Query implements verbs.QP.
func (q *queuePair) Query() (verbs.QPAttr, error) {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.open("query"); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.transport.Attr(), nil
}

// PostSend implements verbs.QP.
func (q *queuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.open("post send"); err != nil {
		return 0, err
	}
	n, err := q.transport.PostSend(wrs)
	if n > 0 {
		d.activate(q)
		d.transmit(d.now())
	}
	return n, err
}

// PostRecv implements verbs.QP.
func (q *queuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.open("post receive"); err != nil {
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
	q.closed = true
	q.listen()
	delete(d.queuePairs, q.num)
	if d.last == q {
		d.last = nil
	}
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	if q.srq != nil {
		q.srq.refs--
	}
	return nil
}
