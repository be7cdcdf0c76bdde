package roce

import (
	"runtime/debug"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// receive handles the packets that have arrived, and reports whether there were any.
func (e *endpoint) receive(now time.Duration) bool {
	datagrams, err := e.socket.Receive()
	if err != nil {
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("receiving packets failed")
	}
	if reports := e.socket.Unreachable(); len(reports) > 0 {
		e.shard.mu.unreachable.note(e, reports)
		e.shard.forwardReports(e, reports)
	}
	for i := range datagrams {
		if i+1 < len(datagrams) && acknowledgementFollows(datagrams[i:]) {
			datagrams[i], datagrams[i+1] = datagrams[i+1], datagrams[i]
		}
		if e.faults == nil {
			e.handle(&datagrams[i], now)
		} else {
			e.faults.Pass(datagrams[i], now, e.arrived)
		}
	}
	if e.faults == nil {
		return len(datagrams) > 0
	}
	e.faults.Release(now, e.arrived)
	e.noteDeadline()
	return len(datagrams) > 0
}

// acknowledgementFollows reports whether the first datagram is a message and the second an
// acknowledgement for the same queue pair, as a device like this one sends them (delayedAck).
// The acknowledgement is handled first, so that a request completes before the reply to it.
// Otherwise their order does not matter: each direction of a connection has its own sequence
// numbers.
func acknowledgementFollows(datagrams []link.Datagram) bool {
	a, b := &datagrams[0], &datagrams[1]
	return wire.IsRequestThenAck(a.Data, b.Data) && a.Src == b.Src
}

// arrived handles a packet that the faults have let through.
func (e *endpoint) arrived(d link.Datagram) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	e.handle(&d, e.device.now())
}

// noteDeadline notes when held packets are due.
func (e *endpoint) noteDeadline() {
	if e.faults == nil {
		return
	}
	if at := e.faults.Deadline(); at != 0 {
		e.shard.noteDeadline(at)
	}
}

// handle handles one packet.
func (e *endpoint) handle(dg *link.Datagram, now time.Duration) {
	if c := e.device.capture; c != nil {
		c.Received(dg, e.destination(dg), now)
	}
	if q := e.classify(dg, now); q != nil && e.authenticate(q, dg, now) {
		e.deliver(q, dg, now)
	}
}

// classify parses a packet and returns its queue pair. It returns nil if the packet is not for
// a queue pair of this shard; it has handed on or dropped the packet then.
func (e *endpoint) classify(dg *link.Datagram, now time.Duration) *queuePair {
	d, s, p := e.device, e.shard, &e.packet
	// A queue pair refuses requests with an unknown opcode itself on a reliable connection.
	if err := p.Parse(dg.Data); err != nil && (err != wire.ErrOpcode || p.Opcode.Service() != wire.ServiceRC && p.Opcode.Service() != wire.ServiceXRC) {
		s.mu.drops.malformed++
		e.refused(dg, noQP, now)
		return nil
	}
	owner := d.main.shard
	switch {
	case dg.Group.IsValid():
		e.handleGroup(dg)
		return nil
	case p.Opcode.Service() == wire.ServiceSRD:
		if s == owner {
			d.handleSRD(e, dg, p, now)
			return nil
		}
	case p.DestQP == wire.ManagementQPN && d.mu.services != nil:
		if s == owner {
			d.handleManagement(e, dg, now)
			return nil
		}
	default:
		q := e.find(p.DestQP)
		if q == nil {
			s.mu.drops.wrongPeer++
			e.refused(dg, p.DestQP, now)
			return nil
		}
		if owner = q.shard; s == owner {
			return q
		}
	}
	owner.enqueuePacket(handoff{endpoint: e.index, datagram: *dg})
	return nil
}

// authenticate reports whether the packet may come from the peer of its queue pair.
func (e *endpoint) authenticate(q *queuePair, dg *link.Datagram, now time.Duration) bool {
	s, p := e.shard, &e.packet
	flow, verdict := q.source.Admit(e.entry, dg.Port, dg.Src, p, now)
	if flow == nil {
		s.mu.drops.countRefused(verdict)
		e.refused(dg, p.DestQP, now)
		return false
	}
	if !flow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		s.mu.drops.badICRC++
		return false
	}
	if verdict = q.source.Learn(dg.Src, p, now); verdict != admission.Admitted {
		s.mu.drops.countRefused(verdict)
		return false
	}
	return true
}

// deliver hands a packet to its queue pair.
func (e *endpoint) deliver(q *queuePair, dg *link.Datagram, now time.Duration) {
	s, p := e.shard, &e.packet
	s.mu.counters.ReceivedPackets++
	if congestion.Marked(dg.Header.TrafficClass) && q.init.Type != verbs.UD { // the sender of a datagram cannot be notified
		q.transport.Marked(p, now)
		s.activate(q)
	}
	switch q.init.Type {
	case verbs.UD:
		ipheader.PutGRH(&e.header, dg.Src.Addr(), e.socket.Addr().Addr(), dg.Header, len(dg.Data))
		q.transport.ReceiveDatagram(p, &e.header, admission.ReplyPort(dg.Src.Port()))
	case verbs.UC:
		q.transport.Receive(p, now)
	default:
		q.transport.Receive(p, now)
		s.scheduleResponse(q, now)
	}
}

// countRefused counts a packet that was refused.
func (d *drops) countRefused(v admission.Verdict) {
	if v == admission.WrongSource {
		d.wrongSource++
		return
	}
	d.wrongPeer++
}

// noQP stands for the queue pair of a malformed packet: no queue pair has this number.
const noQP = 0

// refused notes a packet that was refused for its source or queue pair, or because it is
// malformed.
func (e *endpoint) refused(dg *link.Datagram, qpn uint32, now time.Duration) {
	if until := e.entry.Refused(dg.Src, qpn, now); until != 0 {
		e.shard.noteDeadline(until)
	}
}

// find returns the queue pair with that number, or nil. Successive packets are mostly for one.
func (e *endpoint) find(qpn uint32) *queuePair {
	if e.last == nil || e.last.num != qpn {
		e.last = e.device.mu.queuePairs[qpn]
	}
	return e.last
}
