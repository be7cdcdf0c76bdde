package cm

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Manager is the connection manager of one device.
type Manager struct {
	config   Config
	counters Counters

	listeners   map[listenerKey]*Listener
	conns       map[uint32]*Conn // by own communication ID, in all states
	requests    map[requestKey]*Conn
	peers       map[peerKey]*Conn
	resolutions map[uint32]*Resolution // by request ID
	sidr        map[sidrKey]*SIDRRequest
	roundTrips  map[verbs.GID]*roundTrip // by the peer's address
	measured    fifo.Queue[verbs.GID]    // the peers of roundTrips, the longest known first
	halfOpen    quota.Places[netip.Addr] // by the peer's quota.Network
	ended       []endedListener
	early       []*earlyRequest
	rejected    []rejectedRequest
	closed      bool

	timers      timers.Heap[expirer]
	outgoing    fifo.Queue[Datagram]
	events      fifo.Queue[Event]
	mad         [mad.Len]byte // the MAD being encoded
	freeBuffers []*[mad.Len]byte
}

type listenerKey struct {
	service uint64
	address verbs.GID // zero: all
}

// requestKey finds the connection of a REQ, for duplicates (IBTA 12.9.8).
type requestKey struct {
	address verbs.GID // the peer's
	caGUID  uint64
	commID  uint32
}

// peerKey finds the established connection of a peer's queue pair, for stale ones.
type peerKey struct {
	address verbs.GID
	caGUID  uint64
	qpn     uint32
}

// Datagram is a MAD to be sent from queue pair 1 to queue pair 1.
type Datagram struct {
	Path Path
	MAD  [mad.Len]byte
}

// New makes a manager.
func New(config Config) *Manager {
	return &Manager{
		config:    config.withDefaults(),
		listeners: map[listenerKey]*Listener{}, conns: map[uint32]*Conn{},
		requests: map[requestKey]*Conn{}, peers: map[peerKey]*Conn{},
		resolutions: map[uint32]*Resolution{}, sidr: map[sidrKey]*SIDRRequest{},
		roundTrips: map[verbs.GID]*roundTrip{},
	}
}

// Counters returns the counters.
func (m *Manager) Counters() Counters { return m.counters }

// Deadline returns when Expire must be called; 0: never.
func (m *Manager) Deadline() time.Duration {
	if first := m.timers.First(); first != nil {
		return first.At()
	}
	return 0
}

// Expire handles expired timers.
func (m *Manager) Expire(now time.Duration) {
	for t := m.timers.Due(now); t != nil; t = m.timers.Due(now) {
		m.timers.Remove(t)
		t.Owner.expire(now)
	}
}

// maxQueuedMADs bounds the MADs that wait to be sent. Further ones are dropped, as a network would
// drop them.
const maxQueuedMADs = 4096

// NextMAD removes the oldest MAD to send and stores it in d; false: there is none.
func (m *Manager) NextMAD(d *Datagram) bool {
	if m.outgoing.Len() == 0 {
		return false
	}
	*d = m.outgoing.Pop()
	return true
}

// Close ends everything at once, like a process that exits: each peer gets one REJ or DREQ,
// which NextMAD still returns and which is not repeated. No event follows.
func (m *Manager) Close(now time.Duration) {
	byID := func(a, b *Conn) int { return cmp.Compare(a.localID, b.localID) }
	for _, c := range slices.SortedFunc(maps.Values(m.conns), byID) {
		c.Close(now)
		if c.state != StateIdle {
			c.remove()
		}
	}
	for _, r := range m.resolutions {
		r.Close()
	}
	for _, r := range m.sidr {
		r.remove()
	}
	for _, l := range m.listeners {
		l.closed = true
	}
	clear(m.listeners)
	m.dropEarly()
	m.halfOpen, m.closed = quota.Places[netip.Addr]{}, true
	m.events.Clear()
}

// jitter returns a random addition to the interval before a request is repeated. Without it,
// peers that dial at the same moment and find the backlog full would repeat at the same moment
// each time.
func (m *Manager) jitter(interval time.Duration) time.Duration {
	return time.Duration(m.config.Random() % uint64(interval/4+1))
}

// queueMAD queues a MAD for p, unless too many wait.
func (m *Manager) queueMAD(p Path, b *[mad.Len]byte) {
	if m.outgoing.Len() >= maxQueuedMADs {
		m.counters.OutputFull++
		return
	}
	m.counters.Sent++
	m.outgoing.Push(Datagram{Path: p, MAD: *b})
}

// encoder is a message that can be sent.
type encoder interface {
	Encode(b *[mad.Len]byte) error
}

// send sends a message whose fields fit.
func (m *Manager) send(p Path, message encoder) {
	_ = message.Encode(&m.mad)
	m.queueMAD(p, &m.mad)
}

// sendREJ sends and counts a REJ.
func (m *Manager) sendREJ(p Path, r *mad.REJ) {
	m.counters.REJsSent++
	m.send(p, r)
}

// buffer returns memory for a message that may have to be repeated.
func (m *Manager) buffer() *[mad.Len]byte {
	if n := len(m.freeBuffers); n > 0 {
		b := m.freeBuffers[n-1]
		m.freeBuffers = m.freeBuffers[:n-1]
		return b
	}
	return new([mad.Len]byte)
}

// maxFreeBuffers bounds the buffers kept for reuse.
const maxFreeBuffers = 256

func (m *Manager) release(b *[mad.Len]byte) {
	if b != nil && len(m.freeBuffers) < maxFreeBuffers {
		m.freeBuffers = append(m.freeBuffers, b)
	}
}

// newID returns an unpredictable ID that is not 0.
func (m *Manager) newID(used func(uint32) bool) uint32 {
	for {
		if id := uint32(m.config.Random())&^15 | uint32(m.config.Slot); id != 0 && !used(id) {
			return id
		}
	}
}

// NamesConnection reports whether a MAD names, by its ID, a connection or a resolution that
// this device has with the peer. Only hosts that have seen the handshake know the ID.
// NamesConnection checks nothing else; callers use it to decide whether the MAD is worth
// receiving.
func (m *Manager) NamesConnection(b []byte, from *Path) bool {
	id, attribute, ok := mad.Receiver(b)
	if !ok {
		return false
	}
	if attribute == mad.AttrSIDRREP {
		r := m.resolutions[id]
		return r != nil && r.isFromPeer(from)
	}
	c := m.conns[id]
	return c != nil && c.isFromPeer(from)
}

// Receive handles a MAD that came to queue pair 1; the package comment says what the caller
// must have checked. The caller may reuse the bytes when Receive returns. Receive reports
// whether the MAD was expected: a request, or the next message of a handshake, that was not
// refused.
func (m *Manager) Receive(b []byte, from Path, now time.Duration) (expected bool) {
	if m.closed {
		return false
	}
	refused := m.counters.refused()
	m.receive(b, from, now)
	return m.counters.refused() == refused
}

func (m *Manager) receive(b []byte, from Path, now time.Duration) {
	m.counters.Received++
	m.handle(b, from, now)
}

func (m *Manager) handle(b []byte, from Path, now time.Duration) {
	h, err := mad.DecodeHeader(b)
	if err == nil {
		switch h.Attribute {
		case mad.AttrREQ:
			var r mad.REQ
			if err = r.Decode(b); err == nil && !m.keepEarly(r.ServiceID, b, from, now) {
				m.receiveREQ(&r, from, now)
			}
		case mad.AttrMRA:
			var r mad.MRA
			if err = r.Decode(b); err == nil {
				m.receiveMRA(&r, from, now)
			}
		case mad.AttrREJ:
			var r mad.REJ
			if err = r.Decode(b); err == nil {
				m.receiveREJ(&r, from, now)
			}
		case mad.AttrREP:
			var r mad.REP
			if err = r.Decode(b); err == nil {
				m.receiveREP(&r, from, now)
			}
		case mad.AttrRTU:
			var r mad.RTU
			if err = r.Decode(b); err == nil {
				m.receiveRTU(&r, from, now)
			}
		case mad.AttrDREQ:
			var r mad.DREQ
			if err = r.Decode(b); err == nil {
				m.receiveDREQ(&r, from, now)
			}
		case mad.AttrDREP:
			var r mad.DREP
			if err = r.Decode(b); err == nil {
				m.receiveDREP(&r, from, now)
			}
		case mad.AttrSIDRREQ:
			var r mad.SIDRREQ
			if err = r.Decode(b); err == nil && !m.keepEarly(r.ServiceID, b, from, now) {
				m.receiveSIDRREQ(&r, from, now)
			}
		case mad.AttrSIDRREP:
			var r mad.SIDRREP
			if err = r.Decode(b); err == nil {
				m.receiveSIDRREP(&r, from, now)
			}
		case mad.AttrLAP:
			var r mad.LAP
			if err = r.Decode(b); err == nil {
				m.receiveLAP(&r, from)
			}
		case mad.AttrAPR:
			m.counters.WrongState++ // this device never sends a LAP
		}
	}
	if err != nil {
		m.counters.Malformed++
	}
}

// find returns the connection that a message from a peer belongs to. The peer's communication
// ID must match, unless it is not known yet.
func (m *Manager) find(localID, remoteID uint32, from Path) *Conn {
	return m.findBy(localID, remoteID, from, (*Conn).isFromPeer)
}

func (m *Manager) findBy(localID, remoteID uint32, from Path, isFrom func(*Conn, *Path) bool) *Conn {
	c := m.conns[localID]
	switch {
	case c == nil || c.remoteKnown && c.remoteID != remoteID:
		m.counters.UnknownConnection++
	case !isFrom(c, &from):
		m.counters.WrongPeer++
	default:
		return c
	}
	return nil
}

// PeerUnreachable handles the report that no process has the peer's UDP port (ICMP port
// unreachable), which quotes a message of ours. The handshake, release or resolution that waits for
// the response to this message ends; established connections do not. No other ends: its message may
// have come later, when the port was open. Other causes, that the network cannot reach the host, end only
// requests: others have reached it, and may again.
func (m *Manager) PeerUnreachable(path Path, transactionID uint64, cause Cause, now time.Duration) {
	if transactionID == 0 {
		return
	}
	for owner := range m.timers.All() {
		switch o := owner.(type) {
		case *Conn:
			if o.awaited() == transactionID && o.path.Remote.Port() == path.Remote.Port() && o.isFromAddress(&path) {
				if cause == CausePortUnreachable || o.state == StateREQSent {
					o.giveUp(cause, now)
				}
				return
			}
		case *Resolution:
			if o.transactionID == transactionID && o.path.Remote.Port() == path.Remote.Port() && o.isFromPeer(&path) {
				o.end(Event{Type: EventUnreachable, Cause: cause})
				return
			}
		}
	}
}

// NoRoute reports that a datagram of NextMAD could not be sent, since the host has no route to
// the peer. A REQ or SIDR_REQ that was sent for the first time fails. A repeated one
// continues: there was a route before, and there may be one again.
func (m *Manager) NoRoute(d *Datagram, now time.Duration) {
	h, err := mad.DecodeHeader(d.MAD[:])
	if err != nil {
		return
	}
	switch h.Attribute {
	case mad.AttrREQ:
		var r mad.REQ
		_ = r.Decode(d.MAD[:])
		if c := m.conns[r.LocalCommID]; c != nil && c.state == StateREQSent && !c.retransmission.repeated {
			c.giveUp(CauseNoRoute, now)
		}
	case mad.AttrSIDRREQ:
		var r mad.SIDRREQ
		_ = r.Decode(d.MAD[:])
		if o := m.resolutions[r.RequestID]; o != nil && !o.retransmission.repeated {
			o.end(Event{Type: EventUnreachable, Cause: CauseNoRoute})
		}
	}
}

// pKeyUsable reports whether a P_Key is of the default partition, the only one of the device.
func pKeyUsable(key uint16) bool { return key&0x7fff == wire.DefaultPKey&0x7fff }
