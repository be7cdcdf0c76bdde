package capture

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// exchange names a connection, or a resolution of a service, at one end.
type exchange struct {
	addr netip.Addr
	id   uint32
	sidr bool
}

const maxEvents = 32

func messageName(m int) string { return mad.Attribute(m).String() }

// management handles a message of the connection manager.
func (a *analyser) management(f *frame) {
	b := a.p.Payload
	h, err := mad.DecodeHeader(b)
	if err != nil {
		a.report.Ignored.Malformed++
		return
	}
	a.messages[h.Attribute]++
	src, dst := a.d.src.Addr(), a.d.dst.Addr()
	switch h.Attribute {
	case mad.AttrREQ:
		var m mad.REQ
		if m.Decode(b) == nil {
			a.request(f, &m)
		}
	case mad.AttrREP:
		var m mad.REP
		if c := a.exchanges[exchange{addr: dst, id: receiver(b)}]; c != nil && m.Decode(b) == nil {
			c.Ends[1].QPN, c.answered = m.QPN, true
			a.name(c, exchange{addr: src, id: m.LocalCommID})
			a.closePair(c)
			a.register(place{c, 0}, key{src: dst, dst: src, qpn: m.QPN, service: c.service})
			a.event(c, f, h.Attribute, "")
		}
	case mad.AttrREJ:
		var m mad.REJ
		if c := a.party(b); c != nil && m.Decode(b) == nil {
			a.event(c, f, h.Attribute, m.Reason.String())
			if (c.exchanges[0] == exchange{addr: src, id: m.LocalCommID}) {
				a.over(c, "given up", src, m.Reason.String())
				return
			}
			c.answered = true
			a.over(c, "rejected", src, m.Reason.String())
		}
	case mad.AttrDREQ:
		if c := a.party(b); c != nil {
			a.event(c, f, h.Attribute, "")
			a.over(c, "disconnected", src, "")
		}
	case mad.AttrSIDRREQ:
		var m mad.SIDRREQ
		if m.Decode(b) == nil {
			x := exchange{addr: src, id: m.RequestID, sidr: true}
			c := a.exchanges[x]
			if c == nil {
				c = a.create(wire.ServiceUD, src, dst, f.at)
				c.Port = port(m.ServiceID)
				a.name(c, x)
			}
			a.event(c, f, h.Attribute, "")
		}
	case mad.AttrSIDRREP:
		var m mad.SIDRREP
		if m.Decode(b) != nil {
			return
		}
		if c := a.exchanges[exchange{addr: dst, id: m.RequestID, sidr: true}]; c != nil {
			c.answered = true
			a.event(c, f, h.Attribute, m.Status.String())
			if c.Ends[1].QPN = m.QPN; m.Status != mad.SIDRValid {
				a.over(c, "rejected", src, m.Status.String())
			} else if c.closed == "" {
				c.closed = "resolved"
			}
		}
	default:
		if c := a.party(b); c != nil {
			c.answered = true
			a.event(c, f, h.Attribute, "")
		}
	}
}

// receiver is the ID by which a message names its receiver.
func receiver(b []byte) uint32 {
	id, _, _ := mad.Receiver(b)
	return id
}

// port is the port of RDMA CM that a service ID has in its port spaces, or 0.
func port(serviceID uint64) uint16 {
	const prefix = 1 << 24 // IB CM private service IDs of RDMA CM (annex A11)
	if serviceID>>24 != prefix>>24 {
		return 0
	}
	return uint16(serviceID)
}

// party returns the connection of a message, by the ID of its receiver or else of its sender, which
// all messages but those of SIDR begin with.
func (a *analyser) party(b []byte) *connection {
	if c := a.exchanges[exchange{addr: a.d.dst.Addr(), id: receiver(b)}]; c != nil && receiver(b) != 0 {
		return c
	}
	const header = 24
	return a.exchanges[exchange{addr: a.d.src.Addr(), id: binary.BigEndian.Uint32(b[header:])}]
}

// name notes the ID of a connection at one end.
func (a *analyser) name(c *connection, x exchange) {
	if a.exchanges[x] != c && len(c.exchanges) < 4 {
		a.exchanges[x] = c
		c.exchanges = append(c.exchanges, x)
	}
}

func (a *analyser) request(f *frame, m *mad.REQ) {
	src, dst := a.d.src.Addr(), a.d.dst.Addr()
	x := exchange{addr: src, id: m.LocalCommID}
	c := a.exchanges[x]
	if c == nil || c.Ends[0].QPN != m.QPN {
		service := wire.ServiceRC
		if m.Transport == mad.TransportUC {
			service = wire.ServiceUC
		}
		c = a.create(service, src, dst, f.at)
		c.Ends[0].QPN, c.Port, c.MTU = m.QPN, port(m.ServiceID), int(mad.MTUOf(m.PathMTU))
		delete(a.exchanges, x)
		a.name(c, x)
		a.register(place{c, 1}, key{src: dst, dst: src, qpn: m.QPN, service: service})
	}
	a.event(c, f, mad.AttrREQ, "")
}

// event adds a message to those of a connection, or counts it if it is a repeat.
func (a *analyser) event(c *connection, f *frame, m mad.Attribute, reason string) {
	a.use(c, f)
	src := a.d.src.Addr()
	i := slices.IndexFunc(c.Events, func(e Event) bool { return e.From == src && e.Message == m.String() && e.Reason == reason })
	if i < 0 {
		if i = len(c.Events); i == maxEvents {
			return
		}
		c.Events = append(c.Events, Event{At: utc(f.at), From: src, Message: m.String(), Reason: reason})
	}
	e := &c.Events[i]
	if f.from == inbound {
		e.received++
	} else {
		e.sent++
	}
	e.Times = max(e.sent, e.received)
}

// over notes that a connection has ended.
func (a *analyser) over(c *connection, how string, by netip.Addr, reason string) {
	if c.closed != "" {
		return
	}
	c.rejected = how == "rejected"
	c.closedBy, c.closed = by, how+" by "+by.String()
	if reason != "" {
		c.closed += ": " + reason
	}
}
