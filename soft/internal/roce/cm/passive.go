package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// kindOf returns the transport of a REQ; false: this device does not have it.
func kindOf(r *mad.REQ) (verbs.QPType, bool) {
	switch {
	case r.ExtendedTransport != 0:
		return 0, false
	case r.Transport == mad.TransportRC:
		return verbs.RC, true
	case r.Transport == mad.TransportUC:
		return verbs.UC, true
	}
	return 0, false
}

func (m *Manager) receiveREQ(r *mad.REQ, from Path, now time.Duration) {
	local, remote := from.localGID(), from.remoteGID()
	if r.QPN < 2 {
		m.counters.Malformed++
		return
	}
	if r.Primary.LocalGID != remote {
		m.counters.AddressMismatch++
		return
	}
	back := responsePath(r.TransactionID, from)
	reject := func(reason mad.Reason, info []byte) {
		m.sendREJ(back, &mad.REJ{TransactionID: r.TransactionID, RemoteCommID: r.LocalCommID, Message: mad.MessageREQ, Reason: reason, Info: info})
	}
	key := requestKey{remote, r.CAGUID, r.LocalCommID}
	if c := m.requests[key]; c != nil {
		m.counters.DuplicateREQ++
		switch {
		case !c.isFromPeer(&from):
			m.counters.WrongPeer++
		case c.state == StateREQReceived && c.mraSent:
			c.sendMRA(now)
		case c.state == StateTimeWait:
			reject(verbs.CMRejectStaleConnection, nil)
		}
		return
	}
	if m.checkStale(peerKey{remote, r.CAGUID, r.QPN}, now) {
		reject(verbs.CMRejectStaleConnection, nil)
		return
	}
	if m.wasRejected(key, r.TransactionID, now) {
		m.counters.DuplicateREQ++
		reject(verbs.CMRejectInvalidServiceID, nil)
		return
	}
	l := m.listenerFor(r.ServiceID, local)
	if l == nil || l.params.Transport == verbs.UD {
		m.counters.NoService++
		m.noteRejected(rejectedRequest{key, r.TransactionID, now})
		reject(verbs.CMRejectInvalidServiceID, nil)
		return
	}
	var header mad.IPHeader
	kind, known := kindOf(r)
	mtu, most := mad.MTUOf(r.PathMTU), m.config.MTU
	if l.params.MTU != 0 {
		most = min(most, l.params.MTU)
	}
	refused := true
	switch {
	case !known || kind != l.params.Transport:
		reject(mad.ReasonInvalidTransport, nil)
	case !pKeyUsable(r.PKey) || header.Decode(r.PrivateData) != nil:
		reject(verbs.CMRejectUnsupported, nil)
	case r.Primary.RemoteGID != local:
		reject(mad.ReasonInvalidGID, local[:])
	case mtu == 0 || mtu > most:
		reject(verbs.CMRejectInvalidMTU, []byte{mad.MTUCode(most)})
	default:
		refused = false
	}
	switch {
	case refused:
		m.counters.UnsupportedRequest++
		return
	case verbs.GIDFromAddr(header.Source) != remote || verbs.GIDFromAddr(header.Destination) != local:
		m.counters.AddressMismatch++
		return
	case len(m.conns) >= m.config.MaxConnections:
		m.counters.ConnectionsFull++
		return
	case !m.admit(l, remote):
		return
	}
	c := &Conn{
		manager: m, listener: l, kind: kind, passive: true, halfOpen: true, requestQueued: true,
		path: back, local: local, remote: remote,
		peer:        netip.AddrPortFrom(back.Remote.Addr(), header.SourcePort),
		localID:     m.newID(func(id uint32) bool { return m.conns[id] != nil }),
		remoteKnown: true, remoteID: r.LocalCommID, caGUID: r.CAGUID, transactionID: r.TransactionID,
		remoteQPN: r.QPN, remotePSN: r.StartingPSN, mtu: mtu, sourcePort: sourcePort(r.QKey, &from),
		// The peer's initiator depth asks for our responder resources, and vice versa.
		responderResources: r.InitiatorDepth, initiatorDepth: r.ResponderResources,
		retryCount: r.RetryCount, rnrRetry: r.RNRRetry, peerRNRRetry: r.RNRRetry,
		ackTimeout: clamp(r.Primary.AckTimeout, minAckTimeout, maxAckTimeout),
		timeWait:   clamp(r.Primary.AckTimeout, minAckTimeout, maxAckTimeout),
		// The network uses the lower two bits (ECN).
		trafficClass: r.Primary.TrafficClass &^ 3,
		peerSRQ:      r.SRQ, alternate: r.Alternate.LocalLID != 0,
		retransmission: retransmission{responseTimeout: timeoutDuration(clamp(r.LocalResponseTimeout, minResponseTimeout, maxResponseTimeout))}, maxCMRetries: r.MaxCMRetries,
	}
	c.timer.Owner = c
	if kind == verbs.UC {
		c.responderResources, c.initiatorDepth = 0, 0
	}
	m.conns[c.localID] = c
	m.requests[c.requestKey()] = c
	c.awaitCaller(StateREQReceived, timeoutDuration(r.RemoteResponseTimeout), now)
	m.post(Event{Type: EventConnectRequest, Conn: c, Listener: l, PrivateData: bytes.Clone(r.PrivateData[mad.IPHeaderLen:])})
}

// AcceptParams are the parameters of [Conn.Accept].
type AcceptParams struct {
	QPN uint32 // of this side, from 2
	PSN uint32 // first PSN that the peer is to send, 24 bits
	// ResponderResources and InitiatorDepth limit the peer's offer (Conn.Params): the reads
	// and atomics of the peer that this side accepts, and those that it sends itself.
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetry           uint8 // 0 to 7; for the peer's queue pair
	SRQ                bool  // the queue pair has a shared receive queue
	// Deadline ends the wait for the RTU, if it is before Config.HandshakeTimeout; 0: none.
	Deadline    time.Duration
	PrivateData []byte // up to 196 bytes
}

// Prepare sets the queue pair and the parameters of the passive side, so that QPAttr is
// complete. It sends nothing. Accept includes it.
func (c *Conn) Prepare(p AcceptParams) error {
	if c.state != StateREQReceived {
		return c.wrongState("accept", StateREQReceived)
	}
	var err error
	switch {
	case p.QPN < 2 || p.QPN >= 1<<24:
		err = fmt.Errorf("QPN is %#x, must be from 2 to 0xffffff", p.QPN)
	case p.PSN >= 1<<24:
		err = fmt.Errorf("PSN is %#x, must fit in 24 bits", p.PSN)
	case p.RNRRetry > 7:
		err = fmt.Errorf("RNRRetry is %d, must be from 0 to 7", p.RNRRetry)
	case len(p.PrivateData) > mad.REPPrivateLen:
		err = fmt.Errorf("%d bytes of private data exceed the %d of a REP", len(p.PrivateData), mad.REPPrivateLen)
	}
	if err != nil {
		return fmt.Errorf("accept the connection of %v: %w: %w", c.peer, err, verbs.ErrInvalid)
	}
	c.localQPN, c.localPSN = p.QPN, p.PSN
	c.responderResources = min(c.responderResources, p.ResponderResources)
	c.initiatorDepth = min(c.initiatorDepth, p.InitiatorDepth)
	return nil
}

// Accept sends the REP. The queue pair must be in RTR or RTS: packets may arrive before
// EventEstablished. EventEstablished, EventRejected or EventUnreachable follows.
func (c *Conn) Accept(p AcceptParams, now time.Duration) error {
	if err := c.Prepare(p); err != nil {
		return err
	}
	m := c.manager
	rep := mad.REP{
		TransactionID: c.transactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID,
		QKey: c.path.sourceKey(), QPN: p.QPN, StartingPSN: p.PSN, ResponderResources: c.responderResources, InitiatorDepth: c.initiatorDepth,
		TargetAckDelay: m.config.TargetAckDelay, RNRRetry: p.RNRRetry, SRQ: p.SRQ,
		CAGUID: m.config.CAGUID, PrivateData: p.PrivateData,
	}
	if c.alternate {
		rep.Failover = mad.FailoverNotSupported
	}
	message := m.buffer()
	if err := rep.Encode(message); err != nil {
		m.release(message)
		return fmt.Errorf("accept the connection of %v: %w: %w", c.peer, err, verbs.ErrInvalid)
	}
	c.message = message
	c.deadline, c.deadlineCause = now+m.config.HandshakeTimeout, CauseTimeout
	if p.Deadline != 0 && p.Deadline < c.deadline {
		c.deadline, c.deadlineCause = p.Deadline, CauseDeadline
	}
	c.startRetransmission(StateREPSent, now)
	return nil
}

func (m *Manager) receiveRTU(r *mad.RTU, from Path, now time.Duration) {
	c := m.find(r.RemoteCommID, r.LocalCommID, from)
	switch {
	case c == nil:
	case r.TransactionID != c.transactionID:
		m.counters.WrongTransaction++
	case c.state != StateREPSent:
		m.counters.WrongState++
	default:
		c.noteResponse(now)
		c.established(bytes.Clone(r.PrivateData), now)
	}
}

// CommunicationEstablished reports that the first packet has arrived at the queue pair of a
// passive side (IBTA 11.6.3.1): the peer has the REP, even if its RTU was lost. In other
// states it does nothing. The packet must be one that the transport accepts.
func (c *Conn) CommunicationEstablished(now time.Duration) {
	if c.state == StateREPSent {
		c.established(nil, now)
	}
}

func (c *Conn) established(private []byte, now time.Duration) {
	m := c.manager
	if m.checkStale(c.peerKey(), now) {
		// Two requests of one queue pair were in progress, and the other one was established
		// first.
		c.sendREJ(mad.MessageOther, verbs.CMRejectStaleConnection, nil, nil)
		m.post(Event{Type: EventRejected, Conn: c, Cause: CauseStale, Reason: verbs.CMRejectStaleConnection, Message: mad.MessageOther})
		c.enterTimeWait(now)
		return
	}
	c.addToPeers()
	c.stopRetransmission()
	c.state, c.deadline = StateEstablished, 0
	c.endHandshake()
	m.post(Event{Type: EventEstablished, Conn: c, PrivateData: private})
}
