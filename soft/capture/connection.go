package capture

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// arrivalOnly reports whether a frame shows the arrival of a packet that was recorded when it was
// sent, too. It notes if this is the sender's record.
func (c *connection) arrivalOnly(side int, f *frame) bool {
	h := &c.half[side]
	h.sentSeen = h.sentSeen || f.from == outbound
	return f.from == inbound && h.sentSeen
}

// packet handles a packet that an end sent, with a payload of size bytes.
func (c *connection) packet(a *analyser, side int, f *frame, size int) {
	p, d, h := &a.p, &c.Sent[side], &c.half[side]
	const congestionExperienced = 3
	if a.d.tos&3 == congestionExperienced {
		d.Marked++
	}
	arrival := c.arrivalOnly(side, f)
	if !arrival {
		d.Packets++
		h.lastSent = f.at
		h.received = f.from == inbound
	}
	o := p.Opcode
	s := &h.requests
	switch {
	case c.service == wire.ServiceUD:
		if !arrival {
			d.Sends++
			d.Bytes += int64(size)
		}
		return
	case answers(o), o >= wire.SRDReadResponse:
		if c.service == wire.ServiceSRD && o >= wire.SRDHello {
			return
		}
		if !arrival {
			c.countRefusals(d, p)
		}
		// The acknowledgement counts when the requester has it, if that is in the capture.
		if peer := &c.half[1-side]; arrival || f.from != outbound || !peer.requests.tracked {
			c.response(1-side, p, f.at)
		}
		if !o.IsReadResponse() {
			return
		}
		s = &h.responses
	}
	if arrival {
		c.arrived(d, s, p.PSN)
		return
	}
	c.sequence(a, side, s, f, size)
}

// arrived notes that a packet that was sent has arrived.
func (c *connection) arrived(d *Direction, s *stream, psn uint32) {
	s.tracked = true
	r := s.find(psn)
	if r == nil {
		return
	}
	if r.received++; r.received > 1 {
		return
	}
	if s.arriving && wire.PSNDiff(psn, s.arrived) < 0 && c.service != wire.ServiceSRD {
		if r.sent == 1 {
			d.Reordered++
		}
		return
	}
	s.arriving, s.arrived = true, wire.PSNAdd(psn, 1)
}

// forget takes a packet out of the recent ones. If both ends are in the capture, this shows whether
// it was lost.
func (c *connection) forget(side int, s *stream, r *recent) {
	if !s.tracked {
		return
	}
	if r.received < r.sent {
		c.Sent[side].LostAfter += int64(r.sent - r.received)
	} else {
		c.Sent[side].Repeats.Duplicated += int64(r.received - r.sent)
	}
}

// sequence places a request or a response in its sequence.
func (c *connection) sequence(a *analyser, side int, s *stream, f *frame, size int) {
	p, d, h := &a.p, &c.Sent[side], &c.half[side]
	request := s == &h.requests
	least, most := c.numbers(p)
	gapAllowed := c.service == wire.ServiceSRD || !request && (p.Opcode == wire.RCReadResponseFirst || p.Opcode == wire.RCReadResponseOnly)
	if !s.begun && c.service == wire.ServiceSRD { // earlier ones may follow
		s.missing = append(s.missing, missing{wire.PSNAdd(p.PSN, -firstRecent), p.PSN, f.at})
	}
	verdict, gap, skipped := s.observe(p.PSN, least, f.at)
	if gap > 0 && gapAllowed && !request {
		s.missing = s.missing[:0] // requests of another kind are between two reads
	}
	r := s.note(p.PSN, &a.room, func(r *recent) { c.forget(side, s, r) })
	switch verdict {
	case isNew:
		s.slack = most - least
		h.resending = h.resending && !request
		if gap > 0 && !gapAllowed {
			d.Gaps++
			if c.service == wire.ServiceUC {
				d.LostBefore += int64(gap)
			}
			if !request {
				c.half[1-side].responseGap = f.at
			}
		}
		c.operation(d, h, p, size)
	case isLate:
		c.late(side, s, r, f, skipped)
		c.operation(d, h, p, size)
	case isRepeat:
		if r.lost && r.sent == 1 && h.nak.any && h.nak.at <= r.at {
			// Only now comes the repeat that the NAK asked for. The packet before was the first
			// copy, which others had overtaken.
			r.lost = false
			d.LostBefore--
			d.Reordered++
			d.Repeats.Sequence--
			r.at = h.nak.at // not repeated since
		}
		if cause := c.cause(side, s, r, f); cause != nil {
			*cause++
		}
	}
	r.at, s.last = f.at, r.psn
	r.sent++
}

// numbers returns how many sequence numbers a packet takes: the limits, if the path MTU is unknown.
func (c *connection) numbers(p *wire.Packet) (least, most uint32) {
	switch {
	case p.Opcode == wire.SRDReadRequest:
		return uint32(p.Segments.Count), uint32(p.Segments.Count)
	case p.Opcode == wire.RCReadRequest && c.MTU > 0:
		return packets(p.RETH.Length, c.MTU), packets(p.RETH.Length, c.MTU)
	case p.Opcode == wire.RCReadRequest:
		return packets(p.RETH.Length, 4096), packets(p.RETH.Length, 256)
	}
	return 1, 1
}

// operation counts a packet that is no repeat.
func (c *connection) operation(d *Direction, h *half, p *wire.Packet, size int) {
	d.Bytes += int64(size)
	switch o := p.Opcode; o.On(wire.ServiceRC) {
	case wire.RCSendFirst, wire.RCWriteFirst, wire.RCSendMiddle, wire.RCWriteMiddle, wire.RCReadResponseFirst, wire.RCReadResponseMiddle:
		if c.service == wire.ServiceSRD {
			break
		}
		if !h.full && !o.IsReadResponse() {
			h.full, h.firstFull = true, p.PSN
		}
		c.MTU = size
	}
	switch o := p.Opcode.Operation(); {
	case c.service == wire.ServiceSRD && p.Opcode.HasRETH() && p.Offset > 0:
	case o == wire.RCSendFirst, o == wire.RCSendOnly, o == wire.RCSendOnlyImm, o == wire.RCSendOnlyInvalidate:
		d.Sends++
	case o == wire.RCWriteFirst, o == wire.RCWriteOnly, o == wire.RCWriteOnlyImm:
		d.Writes++
	case o == wire.RCReadRequest:
		d.Reads++
	case o == wire.RCCompareSwap, o == wire.RCFetchAdd, o == wire.RCAtomicWrite:
		d.Atomics++
	}
}

// late handles a packet that was missing. Either it was overtaken, or it is a repeat of one that
// was lost.
func (c *connection) late(side int, s *stream, r *recent, f *frame, skipped int64) {
	d, h := &c.Sent[side], &c.half[side]
	request := s == &h.requests
	switch {
	case c.service == wire.ServiceSRD:
	case c.service == wire.ServiceUC:
		d.LostBefore--
		d.Reordered++
	case request && h.nak.any && h.nak.at >= skipped && wire.PSNDiff(r.psn, h.nak.psn) >= 0,
		request && h.resending && h.resendNext == r.psn,
		d.RoundTrip.Count > 0 && time.Duration(f.at-skipped) > 4*d.RoundTrip.Mean:
		d.LostBefore++
		cause := c.cause(side, s, r, f)
		r.lost = cause == &d.Repeats.Sequence
		if cause != nil {
			*cause++
		}
	case !request && c.half[1-side].repeated >= skipped:
		d.LostBefore++
	default:
		d.Reordered++
	}
}

// cause returns the counter for a repeat. nil: a response, which is repeated with its request.
func (c *connection) cause(side int, s *stream, r *recent, f *frame) *int64 {
	d, h := &c.Sent[side], &c.half[side]
	soonest := 50 * time.Microsecond // for a repeat: a requester waits for a round trip at least
	if d.RoundTrip.Count > 0 {
		soonest = d.RoundTrip.Min
	}
	seen := r.sent > 0
	unseen := !seen || r.at <= h.nak.at // not repeated since the NAK
	switch {
	case seen && f.from != outbound && s.last == r.psn && time.Duration(f.at-r.at) < soonest:
		return &d.Repeats.Duplicated
	case s != &h.requests:
		return nil
	case h.resending && h.resendNext == r.psn:
	case h.nak.any && unseen && wire.PSNDiff(r.psn, h.nak.psn) >= 0:
		h.cause = &d.Repeats.Sequence
		if h.nak.kind == wire.KindRNRNak {
			h.cause = &d.Repeats.RNR
		}
	case h.responseGap > h.repeated:
		h.cause = &d.Repeats.Response
	case h.acking && wire.PSNDiff(h.acked, r.psn) > 0:
		h.cause = &d.Repeats.AckLost
		h.timeOuts++
	default:
		h.cause = &d.Repeats.TimeOut
		h.timeOuts++
	}
	h.resending, h.resendNext, h.repeated = true, wire.PSNAdd(r.psn, 1), f.at
	return h.cause
}

// countRefusals counts the NAK in a response.
func (c *connection) countRefusals(d *Direction, p *wire.Packet) {
	if !p.Opcode.HasAETH() {
		return
	}
	switch s := p.AETH.Syndrome; {
	case s.Kind() == wire.KindRNRNak:
		d.RNRNAKs++
	case s.Kind() == wire.KindNak && s.Code() == wire.NakSequence && c.service == wire.ServiceRC:
		d.SequenceNAKs++
	case s.Kind() == wire.KindNak:
		if d.NAKs == nil {
			d.NAKs = map[string]int64{}
		}
		d.NAKs[s.Code().String()]++ // 32 at most
	}
}

// response handles a response to the requests of an end.
func (c *connection) response(side int, p *wire.Packet, now int64) {
	d, h := &c.Sent[side], &c.half[side]
	s := &h.requests
	if !s.begun || wire.PSNDiff(p.PSN, wire.PSNAdd(s.next, int(s.slack))) > 0 {
		return // the capture began later than the request
	}
	h.timeOuts = 0
	acked := p.PSN // the last request that is acknowledged
	kind := wire.KindAck
	if p.Opcode.HasAETH() {
		kind = p.AETH.Syndrome.Kind()
	}
	if kind != wire.KindAck || p.Opcode == wire.SRDAcknowledge {
		acked = wire.PSNAdd(acked, -1)
	}
	if kind == wire.KindAck {
		if r := s.find(acked); r != nil && !r.acked {
			if r.acked = true; r.sent == 1 && now >= r.at {
				d.RoundTrip.add(time.Duration(now - r.at))
			}
		}
	}
	if c.service == wire.ServiceSRD && p.Opcode != wire.SRDAcknowledge {
		return // it is about one packet alone
	}
	if next := wire.PSNAdd(acked, 1); !h.acking || wire.PSNDiff(next, h.acked) > 0 {
		h.acking, h.acked = true, next
		h.fullAcked = h.fullAcked || h.full && wire.PSNDiff(acked, h.firstFull) >= 0
		if c.service == wire.ServiceRC {
			d.Unrecorded += s.acknowledged(acked)
		}
	}
	if c.service != wire.ServiceRC || kind == wire.KindAck || kind == wire.KindReserved {
		return
	}
	if r := s.find(p.PSN); kind == wire.KindNak && p.AETH.Syndrome.Code() == wire.NakSequence && r != nil && !s.tracked {
		switch {
		case !h.received && (!h.nak.any || r.at > h.nak.at):
			d.LostAfter++
		case !h.sentSeen && h.nak.psn != p.PSN: // an earlier copy was recorded, which the peer had to drop; not the repeat
			d.LostBefore++
		}
	}
	if p.AETH.Syndrome.IsFatal() && c.refused == "" {
		c.refused = p.AETH.Syndrome.Code().String()
		c.refusedBy = 1 - side
	}
	h.nak = nak{kind: kind, psn: p.PSN, at: now, any: true}
}
