package roce

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// srdOverhead is the maximum size of the IP, UDP and transport headers of SRD, in bytes.
const srdOverhead = pathOverhead + wire.MaxHeaderLen - (wire.BTHLen + wire.AtomicETHLen)

// EFAVendorID is Amazon's vendor ID, with which programs recognise an EFA.
const EFAVendorID = 0x1d0f

// vendorID is zero without EFA, since software has no manufacturer.
func (d *Device) vendorID() uint32 {
	if d.cfg.EFA {
		return EFAVendorID
	}
	return 0
}

// transports are the services of the device's queue pairs.
func (d *Device) transports() verbs.Transports {
	datagrams := verbs.TransportSet(verbs.UD, verbs.SRD)
	if d.cfg.EFA {
		return datagrams
	}
	return datagrams | verbs.TransportSet(verbs.RC, verbs.UC, verbs.XRCSend, verbs.XRCRecv)
}

// srdMTU is the largest payload of an SRD packet.
func (d *Device) srdMTU() verbs.MTU {
	if d.cfg.InterfaceMTU == 0 {
		return pathMTU(0)
	}
	return pathMTU(d.cfg.InterfaceMTU + pathOverhead - srdOverhead)
}

// srdOutput sends to a peer device, and holds the flow of its packets to us.
type srdOutput struct {
	udpOutput
	source       netip.AddrPort // of the last packet received
	incomingFlow wire.Flow      // the flow from source
}

// openSRD makes the device's SRD transport. It exists even if the device has no SRD queue
// pair, in order to refuse packets for one.
func (d *Device) openSRD() {
	cfg := srd.Config{
		Memory: d.mu.memory, Seed: d.cfg.SRDSeed, MTU: d.srdMTU(), Window: d.window(), Random: d.random,
		Output: func(a srd.Address) transport.Output {
			e := d.endpoints[a.Local]
			return &srdOutput{udpOutput: udpOutput{endpoint: e, peer: a.Peer, flow: wire.NewFlow(e.socket.Source(), a.Peer)}}
		},
		Reply: func(a srd.Address, p *wire.Packet) {
			out := &d.main.srdReply
			e := d.endpoints[a.Local]
			*out = udpOutput{endpoint: e, peer: a.Peer, flow: wire.NewFlow(e.socket.Source(), a.Peer)}
			out.Send(p, nil, 0)
			d.main.srdReplied = true
		},
		Number:  d.main.numbers.Of,
		Admits:  func(a srd.Address) bool { return d.admission.Keys.Admit(a.Peer.Addr()) },
		Refused: func(a srd.Address) { d.admission.Keys.Refused(a.Peer.Addr()) },
	}
	d.net.Random(cfg.Secret[:])
	d.main.srd = srd.New(cfg)
	d.main.lastSRDEndpoint = d.endpoints[0]
}

// handleSRD handles an SRD packet, which may come from any host.
func (d *Device) handleSRD(e *endpoint, dg *link.Datagram, p *wire.Packet, now time.Duration) {
	from := srd.Address{Local: e.index, Peer: admission.ListenAddress(dg.Src)}
	c := d.main.srd.Find(&from, p.SRDETH.Target)
	var flow *wire.Flow
	if c != nil {
		out := c.Output().(*srdOutput)
		if dg.Src != out.source {
			out.source, out.incomingFlow = dg.Src, wire.NewFlow(dg.Src, e.destination(dg))
		}
		flow = &out.incomingFlow
	} else {
		e.unconnectedFlow = wire.NewFlow(dg.Src, e.destination(dg))
		flow = &e.unconnectedFlow
	}
	if !admission.DefaultPartition(p.PKey) {
		d.main.mu.drops.wrongPeer++
		return
	}
	if !flow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.main.mu.drops.badICRC++
		return
	}
	d.main.lastSRDEndpoint, e.srdPolledUntil = e, now+srdPollTime
	d.main.mu.counters.ReceivedPackets++
	d.main.srd.Receive(c, from, dg.Src.Port(), p, now)
}

// srdQueuePair is an SRD queue pair.
type srdQueuePair struct {
	pd       *protectionDomain
	num      uint32
	qp       *srd.QP
	sendCQ   *completionQueue
	recvCQ   *completionQueue
	attached bool // counted at the endpoints
	closed   bool
}

// srdAttr returns the limits of SRD queue pairs.
func (d *Device) srdAttr() verbs.SRDAttr {
	return verbs.SRDAttr{
		MaxSendWR: srd.MaxSendWR, MaxRecvWR: srd.MaxRecvWR, MaxSendSGE: srd.MaxSendSGE, MaxRecvSGE: srd.MaxRecvSGE,
		MaxReadSGE: srd.MaxRDMASGE, MaxInline: srd.MaxInline, MaxMessage: uint32(d.srdMTU()), MaxRDMA: srd.MaxRDMA,
		Read: true, Write: true, UnsolicitedWriteRecv: true, RNRRetry: true,
	}
}

func (p *protectionDomain) createSRD(init *verbs.QPInit) (verbs.QP, error) {
	const op = "create SRD queue pair"
	d := p.device
	if init.SRQ != nil {
		return nil, fmt.Errorf("%s: SRD has no shared receive queues: %w", op, verbs.ErrNotSupported)
	}
	for _, l := range []struct {
		what       string
		value, max int
	}{
		{"send requests", init.MaxSendWR, srd.MaxSendWR}, {"receives", init.MaxRecvWR, srd.MaxRecvWR},
		{"scatter-gather entries of a send request", init.MaxSendSGE, srd.MaxSendSGE},
		{"scatter-gather entries of a receive", init.MaxRecvSGE, srd.MaxRecvSGE},
		{"bytes inline", init.MaxInline, srd.MaxInline},
	} {
		if l.value < 0 || l.value > l.max {
			return nil, fmt.Errorf("%s: %d %s requested, must be from 0 to %d: %w", op, l.value, l.what, l.max, verbs.ErrLimit)
		}
	}
	sendCQ, recvCQ, err := d.queuesOf(op, init)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkQueuePairs(op); err != nil {
		return nil, err
	}
	if sendCQ.closed || recvCQ.closed {
		return nil, fmt.Errorf("%s: its completion queue: %w", op, verbs.ErrClosed)
	}
	q := &srdQueuePair{pd: p, num: d.freeQPN(d.main.shard), sendCQ: sendCQ, recvCQ: recvCQ}
	q.qp = d.main.srd.NewQP(srd.QPConfig{
		Num: q.num, Domain: p.id, Send: sendCQ.completerFor(d.main.shard), Recv: recvCQ.completerFor(d.main.shard), SendDepth: init.MaxSendWR, RecvDepth: init.MaxRecvWR,
		MaxSendSGE: init.MaxSendSGE, MaxRecvSGE: init.MaxRecvSGE, MaxInline: init.MaxInline, SignalAll: init.SignalAll,
		Unsolicited: init.UnsolicitedWriteRecv, CheckAH: p.srdAHOf,
	})
	d.mu.srdPairs[q.num] = q
	p.refs++
	sendCQ.refs++
	recvCQ.refs++
	return q, nil
}

// srdAHOf returns the SRD part of a request's address handle.
func (p *protectionDomain) srdAHOf(ah verbs.AH, remoteQPN uint32) (*srd.AH, error) {
	a, ok := ah.(*addressHandle)
	if ok && a.multicast {
		return nil, fmt.Errorf("the address handle is for the multicast group %v, and SRD has no multicast: %w", a.peer.Addr(), verbs.ErrInvalid)
	}
	if err := p.checkAH(ah, 0); err != nil {
		return nil, err
	}
	if a.own != nil && p.device.mu.srdPairs[remoteQPN] != nil {
		return &a.own.srdAH, nil
	}
	return &a.srdAH, nil
}

func (q *srdQueuePair) Num() uint32        { return q.num }
func (q *srdQueuePair) Type() verbs.QPType { return verbs.SRD }

func (q *srdQueuePair) checkOpen(op string) error {
	if q.closed {
		return fmt.Errorf("%s on queue pair %#x: %w", op, q.num, verbs.ErrClosed)
	}
	return q.pd.device.broken(op)
}

// Modify implements verbs.QP.
func (q *srdQueuePair) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.checkOpen("modify"); err != nil {
		return err
	}
	if err := q.qp.Modify(attr, mask, d.now()); err != nil {
		return err
	}
	switch q.qp.State() {
	case verbs.QPReset:
		q.attach(false)
		d.main.discardCompletions(q.num, q.sendCQ, q.recvCQ)
	case verbs.QPReadyToReceive:
		q.attach(true)
	}
	d.main.transmit(d.now())
	return nil
}

// attach sets whether the endpoints work for the queue pair. It receives at all of them.
func (q *srdQueuePair) attach(on bool) {
	if q.attached == on {
		return
	}
	q.attached = on
	n := 1
	if !on {
		n = -1
	}
	for _, e := range q.pd.device.endpoints {
		e.srdQueuePairs += n
	}
}

// Query implements verbs.QP.
func (q *srdQueuePair) Query() (verbs.QPAttr, error) {
	d := q.pd.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	if err := q.checkOpen("query"); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.qp.Attr(), nil
}

// PostSend implements verbs.QP.
func (q *srdQueuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	d := q.pd.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	if err := q.checkOpen("post send"); err != nil {
		return 0, err
	}
	now := d.now()
	n, err := q.qp.PostSend(wrs, now)
	if n > 0 {
		d.main.transmit(now)
	}
	return n, err
}

// PostRecv implements verbs.QP.
func (q *srdQueuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	d := q.pd.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	if err := q.checkOpen("post receive"); err != nil {
		return 0, err
	}
	return q.qp.PostRecv(wrs)
}

// Close implements verbs.QP.
func (q *srdQueuePair) Close() error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.qp.Close()
	q.attach(false)
	delete(d.mu.srdPairs, q.num)
	d.main.discardCompletions(q.num, q.sendCQ, q.recvCQ)
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	return nil
}
