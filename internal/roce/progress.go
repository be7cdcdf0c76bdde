package roce

import (
	"math"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/dma"
	"github.com/verbena-rdma/verbena/internal/roce/link"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	never = time.Duration(math.MaxInt64)
	// sendBudget is how many packets one queue pair sends before the next has
	// its turn.
	sendBudget = 64
	// turnPackets bounds what all of them send between two looks at the sockets.
	turnPackets = 4 * sendBudget
	// copyLimit is the payload up to which a copy costs less than a reference.
	copyLimit = 512
)

// progress receives, does what is due and sends. It reports whether it did
// anything. Endpoints that no queue pair takes packets from are looked at only by
// their own goroutine, which passes itself. The lock is held.
func (d *Device) progress(now time.Duration, self *endpoint) bool {
	worked := false
	for _, e := range d.endpoints {
		if (e.takers > 0 || e == self) && e.receive(now) {
			worked = true
		}
	}
	if d.deadline != 0 && now >= d.deadline {
		d.expire(now)
	}
	if len(d.busy) > 0 {
		d.transmit(now)
		worked = true
	}
	return worked
}

// handle takes one packet.
func (d *Device) handle(e *endpoint, dg *link.Datagram, now time.Duration) {
	p := &e.device.received
	if p.Parse(dg.Data) != nil {
		d.drops.malformed++
		return
	}
	q := d.last
	if q == nil || q.num != p.DestQP {
		if q = d.queuePairs[p.DestQP]; q == nil {
			d.drops.stranger++
			return
		}
		d.last = q
	}
	if !q.mayCome(e, dg.Src) || p.PKey&0x7fff != 0x7fff {
		d.drops.stranger++
		return
	}
	if !q.rx.from(e, dg.Src).CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.drops.badICRC++
		return
	}
	d.counters.ReceivedPackets++
	if d.capture != nil {
		d.capture.packet(dg.Src, e.socket.Addr(), uint16(dg.Segment), now, dg.Data)
	}
	switch q.init.Type {
	case verbs.UD:
		putGRH(&d.grh, dg.Src.Addr(), e.socket.Addr().Addr(), len(dg.Data))
		q.transport.ReceiveDatagram(p, &d.grh)
	case verbs.UC:
		q.transport.Receive(p, now)
	default:
		q.transport.Receive(p, now)
		d.activate(q) // it may have something to answer
	}
}

// activate puts the queue pair in line to send, if there is a way to its peer.
func (d *Device) activate(q *queuePair) {
	if !q.busy && len(q.listening) > 0 {
		q.busy = true
		d.busy = append(d.busy, q)
	}
}

// transmit gives the queue pairs in line their turns.
func (d *Device) transmit(now time.Duration) {
	limit, left := d.counters.SentPackets+turnPackets, selfTurn
	for len(d.busy) > 0 && d.counters.SentPackets < limit && left > 0 {
		served := 0
		for _, q := range d.busy {
			if d.counters.SentPackets >= limit || left <= 0 {
				break
			}
			served++
			if d.serve(q, now, &left) {
				d.again = append(d.again, q)
			}
		}
		rest := copy(d.busy, d.busy[served:])
		clear(d.busy[rest:])
		d.busy = append(d.busy[:rest], d.again...)
		clear(d.again)
		d.again = d.again[:0]
	}
	d.sending = nil
	for _, e := range d.endpoints {
		if e.socket.Pending() > 0 {
			dropped, err := e.socket.Flush()
			d.drops.send += uint64(dropped)
			if err != nil {
				d.log.Debug().Err(err).Int("dropped", dropped).Msg("send")
			}
		}
	}
	d.failOverrun()
	if len(d.busy) > 0 {
		// Neither a packet nor a poll needs to come before the rest can leave.
		d.busy[0].listening[0].socket.Interrupt()
	}
}

// serve gives one queue pair its turn, and reports whether it wants another.
func (d *Device) serve(q *queuePair, now time.Duration, left *int) bool {
	more := false
	if q.self {
		more = d.serveSelf(q, now, left)
	} else {
		d.sending = q
		more = q.transport.Transmit((*output)(d), now, sendBudget)
	}
	if more {
		return true
	}
	q.busy = false
	if at := q.transport.Deadline(); at != 0 {
		d.noteDeadline(at)
	}
	return false
}

// output is the device as the queue pair whose turn it is sees it.
type output Device

// Send implements transport.Output.
func (o *output) Send(p *wire.Packet, pieces [][]byte, n int) {
	d := (*Device)(o)
	d.send(&d.sending.path, p, pieces, n)
}

// SendTo implements transport.Output.
func (o *output) SendTo(ah verbs.AH, p *wire.Packet, pieces [][]byte, n int) {
	if a, ok := ah.(*addressHandle); ok { // as checked when it was posted
		(*Device)(o).send(&a.path, p, pieces, n)
	}
}

func (d *Device) send(way *path, p *wire.Packet, pieces [][]byte, n int) {
	s := way.endpoint.socket
	headers := p.Opcode.HeaderLen()
	tail := int(p.Pad) + wire.ICRCLen
	size := headers + n + tail
	segment := uint16(s.Packet(way.peer, size))
	// What a peer reads may change while it is read: its checksum must be that
	// of the bytes that leave.
	if n <= copyLimit || p.Opcode.HasAETH() {
		b := s.Bytes(size)
		p.PutHeaders(b)
		at := headers
		for _, piece := range pieces {
			at += dma.Copy(b[at:], piece)
		}
		clear(b[at:])
		crc := way.flow.ICRCStart(segment, size, b[:headers])
		crc = wire.ICRCUpdate(crc, b[headers:size-wire.ICRCLen])
		wire.PutICRC(b[size-wire.ICRCLen:], wire.ICRCFinish(crc))
		if d.capture != nil {
			d.capture.packet(s.Addr(), way.peer, segment, d.now(), b)
		}
	} else {
		b := s.Bytes(headers)
		p.PutHeaders(b)
		crc := way.flow.ICRCStart(segment, size, b)
		for _, piece := range pieces {
			s.Reference(piece)
			crc = wire.ICRCUpdate(crc, piece)
		}
		t := s.Bytes(tail)
		clear(t)
		crc = wire.ICRCUpdate(crc, t[:p.Pad])
		wire.PutICRC(t[p.Pad:], wire.ICRCFinish(crc))
		if d.capture != nil {
			d.capture.packet(s.Addr(), way.peer, segment, d.now(), append([][]byte{b}, append(pieces, t)...)...)
		}
	}
	d.counters.SentPackets++
}

// expire does what the queue pairs have due and finds the next deadline.
func (d *Device) expire(now time.Duration) {
	d.deadline = 0
	for _, q := range d.queuePairs {
		at := q.transport.Deadline()
		if at != 0 && now >= at {
			q.transport.Timeout(now)
			d.activate(q)
			at = q.transport.Deadline()
		}
		if at != 0 {
			d.noteDeadline(at)
		}
	}
	for _, e := range d.endpoints {
		if e.faults != nil {
			if at := e.faults.deadline(); at != 0 {
				d.noteDeadline(at)
			}
		}
	}
}

// noteDeadline makes sure that progress is made at that time. The deadline kept
// is a lower bound: it may be early, never late.
func (d *Device) noteDeadline(at time.Duration) {
	if d.deadline != 0 && d.deadline <= at {
		return
	}
	d.deadline = at
	for _, e := range d.endpoints {
		if e.users > 0 && at < e.armed {
			e.armed = at
			e.socket.SetDeadline(d.base.Add(at))
		}
	}
}
