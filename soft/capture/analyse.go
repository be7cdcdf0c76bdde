// Package capture says what went wrong in a recorded RoCEv2 network.
//
// [Analyse] reads a capture in one pass: pcap or pcapng, of this project's software device or of
// tcpdump, of any RoCEv2 traffic. The link types are Ethernet, with VLAN tags, Linux cooked
// (both versions), raw IP and loopback. It finds the connections and, for each, what was sent,
// repeated, lost and refused. It follows at most 4,096 connections, and of each about a thousand
// packets, so that its memory is bounded, whatever the file.
package capture

import (
	"cmp"
	"container/list"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

const (
	maxConnections = 4096
	maxRecentSum   = 1 << 22 // recent packets of all connections
	maxCandidates  = 256
)

// Analyse reads a capture to its end. If the file is truncated or damaged, the error says where,
// and the report has what was read before.
func Analyse(r io.Reader) (*Report, error) {
	a := newAnalyser()
	err := a.read(r)
	return a.finish(), err
}

func newAnalyser() *analyser {
	return &analyser{
		byKey: map[key]place{}, open: map[[2]netip.Addr][]*connection{}, exchanges: map[exchange]*connection{},
		room: maxRecentSum,
	}
}

func (a *analyser) read(r io.Reader) error {
	c, err := newReader(r)
	for err == nil {
		var f frame
		if err = c.next(&f); err == nil {
			a.frame(&f)
		}
	}
	if c != nil {
		a.report.Ignored.Blocks = c.skipped
	}
	if err == io.EOF {
		err = nil
	}
	return err
}

// key names the packets of one direction of a connection. RC and UC packets do not name their
// source; of SRD all queue pairs are one.
type key struct {
	src, dst netip.Addr
	qpn      uint32 // the destination
	source   uint32 // UD only
	service  wire.Service
}

// place is a direction of a connection.
type place struct {
	c    *connection
	side int // index of the sender in Ends
}

// connection is a connection while it is followed.
type connection struct {
	Connection
	service   wire.Service
	keys      [2]key // of the packets that each end sends
	known     [2]bool
	half      [2]half
	used      *list.Element
	exchanges []exchange
	refused   string // by a NAK that ends a connection
	refusedBy int    // the end that sent it
	closed    string // by the connection manager
	closedBy  netip.Addr
	rejected  bool
	answered  bool // the request for the connection
}

// half is what is known of one end as a requester, and what it sent.
type half struct {
	requests, responses stream
	sentSeen            bool // the sender's side is in the capture
	received            bool // the receiver's side is, alone
	lastSent            int64
	acking              bool
	acked               uint32 // the first request that is not acknowledged
	timeOuts            int    // repeats since the last answer
	nak                 nak    // the last, for this end
	responseGap         int64  // when responses to this end were missing
	resending           bool   // in a run of repeats
	resendNext          uint32
	cause               *int64
	repeated            int64  // when a request was repeated last
	full                bool   // a packet of the path MTU was sent …
	firstFull           uint32 // … first with this number
	fullAcked           bool
}

type nak struct {
	kind wire.SyndromeKind
	psn  uint32
	at   int64
	any  bool
}

type analyser struct {
	report      Report
	opcodes     [256]int64
	messages    [256]int64
	first, last int64
	byKey       map[key]place
	open        map[[2]netip.Addr][]*connection // by the sender and receiver of the only known direction
	exchanges   map[exchange]*connection
	used        list.List // connections, the most recently used first
	room        int       // for recent packets
	ports       [1 << 16]bool
	segment     int // length of a packet in the last train
	flow        wire.Flow
	flowSrc     netip.AddrPort
	flowDst     netip.AddrPort

	p wire.Packet
	d datagram
}

func (a *analyser) frame(f *frame) {
	ignored := &a.report.Ignored
	d := &a.d
	switch datagramIn(f, d) {
	case noLinkType:
		ignored.LinkType++
	case fragment:
		ignored.Fragments++
	case other:
		ignored.Other++
	case udp:
		if d.src != a.flowSrc || d.dst != a.flowDst {
			a.flow, a.flowSrc, a.flowDst = wire.NewFlow(d.src, d.dst), d.src, d.dst
		}
		if d.dst.Port() != wire.UDPPort && !a.ports[d.dst.Port()] {
			// A software device may have another port. The right ICRC shows it.
			if len(d.payload) != d.length || a.exact(d.payload, d.ident) == 0 {
				ignored.Other++
				return
			}
			a.ports[d.dst.Port()] = true
		}
		a.datagram(f)
	}
}

// datagram splits a datagram into packets: a sender's kernel shows a train of packets as one
// datagram.
func (a *analyser) datagram(f *frame) {
	d := &a.d
	if len(d.payload) < d.length || d.unusual {
		a.report.Ignored.Unchecked++
		a.packet(f, d.payload, d.length, true)
		return
	}
	if d.length <= wire.MaxDatagramLen && a.flow.CheckICRC(d.payload, d.ident) {
		a.packet(f, d.payload, d.length, true)
		return
	}
	for b, ident := d.payload, d.ident; len(b) > 0; ident++ {
		n := a.exact(b, ident)
		if n == 0 {
			a.packet(f, b, len(b), false)
			return
		}
		a.segment = n
		a.packet(f, b[:n], n, true)
		b = b[n:]
	}
}

// exact returns the length of the packet that b begins with: that for which the ICRC is right. All
// packets of a train but the last have one length. Zero: there is none.
func (a *analyser) exact(b []byte, ident uint16) int {
	right := func(n int) bool {
		crc := a.flow.ICRCStart(ident, n, b[:wire.BTHLen])
		crc = wire.ICRCFinish(wire.ICRCUpdate(crc, b[wire.BTHLen:n-wire.ICRCLen]))
		return crc == binary.LittleEndian.Uint32(b[n-wire.ICRCLen:])
	}
	const shortest = wire.BTHLen + wire.ICRCLen
	if len(b) < shortest || len(b)%4 != 0 || !a.flow.Valid() || wire.Opcode(b[0]).HeaderLen() == 0 {
		return 0
	}
	if n := min(a.segment, len(b)); n >= shortest && right(n) {
		return n
	}
	if len(b) <= wire.MaxDatagramLen && right(len(b)) {
		return len(b)
	}
	if a.d.dst.Port() != wire.UDPPort && !a.ports[a.d.dst.Port()] {
		return 0 // most likely no RoCEv2
	}
	for n := shortest; n <= min(len(b)-shortest, wire.MaxDatagramLen); n += 4 {
		// The next packet has an opcode and the same partition.
		if [2]byte(b[n+2:]) == [2]byte(b[2:]) && wire.Opcode(b[n]).Known() && right(n) {
			return n
		}
	}
	return 0
}

// packet handles one packet, of which b was recorded.
func (a *analyser) packet(f *frame, b []byte, length int, right bool) {
	p := &a.p
	err := wire.ErrTruncated
	if len(b) == length {
		if n := len(b) - wire.ICRCLen; !right && n >= 0 && binary.LittleEndian.Uint32(b[n:]) == 0 {
			right = true // recorded before the adapter computed it
			a.report.Ignored.Unchecked++
		}
		err = p.Parse(b)
	} else if len(b) > 0 {
		if n := wire.Opcode(b[0]).HeaderLen(); n > 0 && len(b) >= n {
			err = p.ParseHeaders(b[:n])
		}
	}
	if err != nil && (right || len(b)%4 != 0) || len(b) < wire.BTHLen {
		a.report.Ignored.Malformed++
		return
	}
	if a.report.Packets++; a.report.Packets == 1 {
		a.first = f.at
	}
	a.last = f.at
	if !right {
		a.wrongICRC(b)
		return
	}
	a.opcodes[p.Opcode]++
	size := max(length-p.Opcode.HeaderLen()-wire.ICRCLen-int(p.Pad), 0)
	xrc := p.Opcode.Service() == wire.ServiceXRC
	if xrc { // an RC connection in all that follows
		p.Opcode = p.Opcode.Operation()
	}
	switch {
	case p.Opcode.Service() == wire.ServiceUD && p.DestQP == wire.ManagementQPN && p.DETH.SrcQP == wire.ManagementQPN:
		a.management(f)
	case p.Opcode == wire.CNP:
		if at, ok := a.lookUp(p.DestQP); ok && !at.c.arrivalOnly(at.side, f) {
			at.c.Sent[at.side].Notified++
		}
	default:
		at := a.find(f.at)
		if xrc {
			at.c.Service = "XRC"
		}
		a.use(at.c, f)
		at.c.packet(a, at.side, f, size)
	}
}

// lookUp finds the connection of a packet that names only its destination.
func (a *analyser) lookUp(qpn uint32) (place, bool) {
	k := key{src: a.d.src.Addr(), dst: a.d.dst.Addr(), qpn: qpn}
	for _, k.service = range []wire.Service{wire.ServiceRC, wire.ServiceUC} {
		if at, ok := a.byKey[k]; ok {
			return at, true
		}
	}
	return place{}, false
}

// wrongICRC counts a packet whose content means nothing. Likely its queue pair is right.
func (a *analyser) wrongICRC(b []byte) {
	if at, ok := a.lookUp(binary.BigEndian.Uint32(b[4:]) & wire.PSNMask); ok {
		at.c.Sent[at.side].ICRCErrors++
		return
	}
	a.report.Ignored.ICRCErrors++
}

// answers reports whether an opcode of RC responds to a request.
func answers(o wire.Opcode) bool {
	return o.Service() == wire.ServiceRC && (o.HasAETH() || o.IsReadResponse())
}

// find returns the connection of the packet, which may be new.
func (a *analyser) find(now int64) place {
	p := &a.p
	k := key{src: a.d.src.Addr(), dst: a.d.dst.Addr(), qpn: p.DestQP, service: p.Opcode.Service()}
	back := key{src: k.dst, dst: k.src, service: k.service}
	switch k.service {
	case wire.ServiceUD:
		k.source, back.qpn, back.source = p.DETH.SrcQP, p.DETH.SrcQP, p.DestQP
	case wire.ServiceSRD:
		k.qpn = 0
	}
	at, found := a.byKey[k]
	if answers(p.Opcode) && (!found || !at.c.known[1-at.side]) {
		if other := a.candidate(k, at.c); other.c != nil {
			a.join(other, k, at)
			return place{other.c, 1 - other.side}
		}
	}
	if found {
		return at
	}
	c := a.create(k.service, k.src, k.dst, now)
	c.Ends[1].QPN = k.qpn
	a.register(place{c, 0}, k)
	if k.service == wire.ServiceUD || k.service == wire.ServiceSRD {
		c.Ends[0].QPN = k.source
		a.register(place{c, 1}, back)
	} else {
		pair := [2]netip.Addr{k.src, k.dst}
		a.open[pair] = append(a.open[pair], c)
	}
	return place{c, 0}
}

// candidate finds the connection whose requests a response answers. Only the packet sequence
// number tells, which begins at random.
func (a *analyser) candidate(k key, not *connection) (best place) {
	list := a.open[[2]netip.Addr{k.dst, k.src}]
	nearest := int32(maxJump)
	for _, c := range list[max(len(list)-maxCandidates, 0):] {
		s := &c.half[0].requests
		if d := wire.PSNDiff(wire.PSNAdd(s.next, int(s.slack)), a.p.PSN); c != not && s.begun && c.service == k.service && d > 0 && d < nearest {
			best, nearest = place{c, 0}, d
		}
	}
	return best
}

// join makes the packets of k the other direction of a connection. If they were taken for a
// connection of their own, that one ends.
func (a *analyser) join(to place, k key, from place) {
	c, side := to.c, 1-to.side
	if from.c != nil {
		c.Sent[side], c.half[side] = from.c.Sent[from.side], from.c.half[from.side]
		from.c.half[from.side] = half{}
		c.half[side].resending = false // its cause is a counter of from
		if from.c.First.Before(c.First) {
			c.First = from.c.First
		}
		a.remove(from.c)
		if len(from.c.Events) > 0 { // the handshake lacks its REP
			c.Events, c.Port, c.MTU = from.c.Events, from.c.Port, from.c.MTU
			for _, x := range from.c.exchanges {
				a.name(c, x)
			}
		}
	}
	a.closePair(c)
	c.Ends[to.side].QPN = k.qpn
	a.register(place{c, side}, k)
}

func (a *analyser) closePair(c *connection) {
	pair := [2]netip.Addr{c.keys[0].src, c.keys[0].dst}
	list := a.open[pair]
	if i := slices.Index(list, c); i >= 0 {
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(a.open, pair)
			return
		}
		a.open[pair] = list
	}
}

func (a *analyser) create(service wire.Service, src, dst netip.Addr, now int64) *connection {
	if a.used.Len() >= maxConnections {
		old := a.used.Back().Value.(*connection)
		left := &a.report.LeftOut
		left.Connections++
		for i := range old.Sent {
			left.Packets += old.Sent[i].Packets
			left.Bytes += old.Sent[i].Bytes
		}
		a.remove(old)
	}
	c := &connection{service: service}
	c.Ends[0].Addr, c.Ends[1].Addr = src, dst
	c.Service = map[wire.Service]string{wire.ServiceRC: "RC", wire.ServiceUC: "UC", wire.ServiceUD: "UD", wire.ServiceSRD: "SRD"}[service]
	c.First = utc(now)
	c.used = a.used.PushFront(c)
	return c
}

// use notes that a frame belongs to a connection.
func (a *analyser) use(c *connection, f *frame) {
	c.Last = utc(f.at)
	a.used.MoveToFront(c.used)
}

// utc converts the time of a frame.
func utc(at int64) time.Time { return time.Unix(0, at).UTC() }

// register notes the packets that an end sends, instead of those noted before. An earlier connection
// of the same queue pairs gets no more.
func (a *analyser) register(at place, k key) {
	if old := at.c.keys[at.side]; at.c.known[at.side] && a.byKey[old] == at {
		delete(a.byKey, old)
	}
	at.c.keys[at.side], at.c.known[at.side] = k, true
	a.byKey[k] = at
}

// remove forgets a connection.
func (a *analyser) remove(c *connection) {
	a.used.Remove(c.used)
	a.closePair(c)
	for i, k := range c.keys {
		if c.known[i] && a.byKey[k].c == c {
			delete(a.byKey, k)
		}
		a.room += len(c.half[i].requests.recent) + len(c.half[i].responses.recent)
	}
	for _, x := range c.exchanges {
		if a.exchanges[x] == c {
			delete(a.exchanges, x)
		}
	}
}

func (a *analyser) finish() *Report {
	r := &a.report
	if r.Packets > 0 {
		r.First, r.Last = utc(a.first), utc(a.last)
	}
	r.Opcodes, r.Messages = map[string]int64{}, map[string]int64{}
	for o, n := range a.opcodes {
		if n > 0 {
			r.Opcodes[wire.Opcode(o).String()] = n
		}
	}
	for m, n := range a.messages {
		if n > 0 {
			r.Messages[messageName(m)] = n
		}
	}
	for e := a.used.Front(); e != nil; e = e.Next() {
		c := e.Value.(*connection)
		for i := range c.half {
			for _, s := range []*stream{&c.half[i].requests, &c.half[i].responses} {
				for j := range s.recent {
					if s.recent[j].used {
						c.forget(i, s, &s.recent[j])
					}
				}
			}
		}
		c.end(a.last)
		r.Connections = append(r.Connections, &c.Connection)
	}
	slices.SortStableFunc(r.Connections, func(a, b *Connection) int {
		return cmp.Or(a.First.Compare(b.First), a.Ends[0].Addr.Compare(b.Ends[0].Addr), cmp.Compare(a.Ends[1].QPN, b.Ends[1].QPN))
	})
	return r
}
