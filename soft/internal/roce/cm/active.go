package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// MaxConnectPrivate is the maximum length of the user's private data in a REQ, in bytes.
const MaxConnectPrivate = mad.REQPrivateLen - mad.IPHeaderLen

// ConnectParams are the parameters of [Manager.Connect].
type ConnectParams struct {
	Service Service
	// Path.Remote.Port is the UDP port of the peer's endpoint, mostly 4791.
	Path Path
	// SourcePort is the port of this side that the REQ names, in the port space of the
	// service. 0: a random one from 49152 to 65535.
	SourcePort uint16
	Transport  verbs.QPType // RC or UC

	QPN                uint32 // of this side, from 2
	PSN                uint32 // first PSN that the peer is to send, 24 bits
	ResponderResources uint8  // reads and atomics of the peer that this side accepts
	InitiatorDepth     uint8  // reads and atomics that this side wants to have outstanding
	RetryCount         uint8  // 0 to 7; for both queue pairs
	RNRRetry           uint8  // 0 to 7; for the peer's queue pair
	SRQ                bool   // the queue pair has a shared receive queue
	PathMTU            verbs.MTU
	TrafficClass       uint8 // of the connection's packets, in both directions
	// AckTimeout is the code of the path's round trip including this side's delay (IBTA 12.7,
	// local ACK timeout). 0: 17, 0.5 s.
	AckTimeout uint8

	// ResponseTimeout is the code of each side's time for a response. 0: 18, 1.07 s. The first
	// repetitions of a message follow sooner, based on the peer's earlier response times.
	ResponseTimeout uint8
	// MaxCMRetries is how often a message is repeated, 1 to 15. 0: 15. The attempt ends after
	// MaxCMRetries+1 response timeouts.
	MaxCMRetries uint8
	// Deadline ends the attempt if no REP has come by then; 0: only MaxCMRetries ends it.
	Deadline time.Duration

	PrivateData []byte // up to MaxConnectPrivate bytes
	Value       any    // becomes Conn.Value
}

func (p *ConnectParams) check(m *Manager) error {
	switch {
	case !p.Path.usable():
		return fmt.Errorf("the path from %v to %v must have two addresses of one family, and two ports", p.Path.Local, p.Path.Remote)
	case p.Transport != verbs.RC && p.Transport != verbs.UC:
		return fmt.Errorf("the transport is %v, must be RC or UC; use Resolve for datagrams", p.Transport)
	case p.QPN < 2 || p.QPN >= 1<<24:
		return fmt.Errorf("QPN is %#x, must be from 2 to 0xffffff", p.QPN)
	case p.PSN >= 1<<24:
		return fmt.Errorf("PSN is %#x, must fit in 24 bits", p.PSN)
	case p.RetryCount > 7 || p.RNRRetry > 7:
		return fmt.Errorf("RetryCount is %d and RNRRetry is %d; the maximum of both is 7", p.RetryCount, p.RNRRetry)
	case !p.PathMTU.Valid() || p.PathMTU > m.config.MTU:
		return fmt.Errorf("PathMTU is %d, must be 256, 512, 1024, 2048 or 4096, and at most %d, the MTU of the port", p.PathMTU, m.config.MTU)
	case p.AckTimeout > 31 || p.ResponseTimeout > 31 || p.MaxCMRetries > 15:
		return fmt.Errorf("AckTimeout is %d, ResponseTimeout %d and MaxCMRetries %d; the maxima are 31, 31 and 15",
			p.AckTimeout, p.ResponseTimeout, p.MaxCMRetries)
	case len(p.PrivateData) > MaxConnectPrivate:
		return fmt.Errorf("%d bytes of private data exceed the %d of a REQ", len(p.PrivateData), MaxConnectPrivate)
	}
	return nil
}

// Connect sends a REQ. EventConnectResponse, EventRejected or EventUnreachable follows.
func (m *Manager) Connect(p ConnectParams, now time.Duration) (*Conn, error) {
	setDefault(&p.AckTimeout, defaultAckTimeout)
	setDefault(&p.ResponseTimeout, defaultResponseTimeout)
	setDefault(&p.MaxCMRetries, defaultMaxCMRetries)
	if err := p.check(m); err != nil {
		return nil, fmt.Errorf("connect to %v at %v: %w: %w", p.Service, p.Path.Remote.Addr(), err, verbs.ErrInvalid)
	}
	if m.closed {
		return nil, fmt.Errorf("connect to %v at %v: %w", p.Service, p.Path.Remote.Addr(), verbs.ErrClosed)
	}
	if len(m.conns) >= m.config.MaxConnections {
		return nil, fmt.Errorf("connect to %v at %v: the device has %d connections, its limit; close some: %w", p.Service, p.Path.Remote.Addr(), len(m.conns), verbs.ErrLimit)
	}
	p.SourcePort = m.sourcePort(p.SourcePort)
	c := &Conn{
		Value: p.Value, manager: m, kind: p.Transport, reported: true,
		path: p.Path, local: p.Path.localGID(), remote: p.Path.remoteGID(),
		peer:          netip.AddrPortFrom(p.Path.Remote.Addr(), p.Service.Port),
		localID:       m.newID(func(id uint32) bool { return m.conns[id] != nil }),
		transactionID: m.newTransactionID(p.Path.Local.Port()),
		localQPN:      p.QPN, localPSN: p.PSN, mtu: p.PathMTU,
		responderResources: p.ResponderResources, initiatorDepth: p.InitiatorDepth,
		retryCount: p.RetryCount, rnrRetry: p.RNRRetry, peerRNRRetry: p.RNRRetry, ackTimeout: p.AckTimeout,
		timeWait:       clamp(p.AckTimeout, minAckTimeout, maxAckTimeout),
		trafficClass:   p.TrafficClass,
		retransmission: retransmission{responseTimeout: timeoutDuration(p.ResponseTimeout)}, maxCMRetries: p.MaxCMRetries,
		deadline: p.Deadline, deadlineCause: CauseDeadline,
		message: m.buffer(),
	}
	c.timer.Owner = c
	transport := mad.TransportRC
	if p.Transport == verbs.UC {
		transport = mad.TransportUC
		c.responderResources, c.initiatorDepth = 0, 0
	}
	private := ipHeader(p.Path, p.SourcePort)
	req := mad.REQ{
		TransactionID: c.transactionID, LocalCommID: c.localID, ServiceID: p.Service.ID(), CAGUID: m.config.CAGUID,
		QKey: p.Path.sourceKey(), QPN: p.QPN, ResponderResources: c.responderResources, InitiatorDepth: c.initiatorDepth,
		RemoteResponseTimeout: p.ResponseTimeout, Transport: transport,
		StartingPSN: p.PSN, LocalResponseTimeout: p.ResponseTimeout, RetryCount: p.RetryCount,
		PKey: wire.DefaultPKey, PathMTU: mad.MTUCode(p.PathMTU), RNRRetry: p.RNRRetry, MaxCMRetries: p.MaxCMRetries, SRQ: p.SRQ,
		Primary: mad.Path{
			LocalLID: mad.PermissiveLID, RemoteLID: mad.PermissiveLID, LocalGID: c.local, RemoteGID: c.remote,
			TrafficClass: p.TrafficClass, HopLimit: hopLimit, AckTimeout: p.AckTimeout,
		},
		PrivateData: append(private[:], p.PrivateData...),
	}
	if err := req.Encode(c.message); err != nil {
		m.release(c.message)
		return nil, fmt.Errorf("connect to %v at %v: %w: %w", p.Service, p.Path.Remote.Addr(), err, verbs.ErrInvalid)
	}
	m.conns[c.localID] = c
	c.startRetransmission(StateREQSent, now)
	return c, nil
}

// sourcePort returns the port that a request names as this side's: given, or a random dynamic
// port (RFC 6335 6).
func (m *Manager) sourcePort(given uint16) uint16 {
	if given != 0 {
		return given
	}
	return uint16(m.config.Random()) | 49152
}

// hopLimit is the hop limit that an address attribute of 0 means.
const hopLimit = 64

// ipHeader returns the RDMA CM header that precedes the user's private data.
func ipHeader(p Path, port uint16) (b [mad.IPHeaderLen]byte) {
	h := mad.IPHeader{Source: p.Local.Addr(), Destination: p.Remote.Addr(), SourcePort: port}
	h.Encode(&b)
	return b
}

func (m *Manager) receiveREP(r *mad.REP, from Path, now time.Duration) {
	c := m.conns[r.RemoteCommID]
	switch {
	case c == nil:
		// Without a REJ the peer would wait for an RTU that never comes.
		m.counters.UnknownConnection++
		m.sendREJ(responsePath(r.TransactionID, from), &mad.REJ{
			TransactionID: r.TransactionID, LocalCommID: r.RemoteCommID, RemoteCommID: r.LocalCommID,
			Message: mad.MessageREP, Reason: verbs.CMRejectInvalidCommID,
		})
		return
	case c.passive || c.remoteKnown && c.remoteID != r.LocalCommID:
		m.counters.UnknownConnection++
		return
	case !c.isFromPeer(&from):
		m.counters.WrongPeer++
		return
	case r.TransactionID != c.transactionID:
		m.counters.WrongTransaction++
		return
	case r.QPN < 2:
		m.counters.Malformed++
		return
	case c.state != StateREQSent:
		c.duplicateREP(now)
		return
	}
	c.remoteKnown, c.remoteID, c.remoteQPN, c.remotePSN, c.caGUID = true, r.LocalCommID, r.QPN, r.StartingPSN, r.CAGUID
	c.sourcePort = sourcePort(r.QKey, &from)
	if m.checkStale(c.peerKey(), now) {
		c.sendREJ(mad.MessageREP, verbs.CMRejectStaleConnection, nil, nil)
		m.post(Event{Type: EventRejected, Conn: c, Cause: CauseStale, Reason: verbs.CMRejectStaleConnection, Message: mad.MessageREP})
		c.enterTimeWait(now)
		return
	}
	c.addToPeers()
	// The peer's responder resources limit our initiator depth, and vice versa.
	c.responderResources = min(c.responderResources, r.InitiatorDepth)
	c.initiatorDepth = min(c.initiatorDepth, r.ResponderResources)
	c.rnrRetry, c.peerSRQ = r.RNRRetry, r.SRQ
	c.ackTimeout = clamp(ackTimeout(c.ackTimeout-1, r.TargetAckDelay), minAckTimeout, 31)
	c.noteResponse(now)
	c.stopRetransmission()
	c.awaitCaller(StateREPReceived, c.retransmission.responseTimeout, now)
	m.post(Event{Type: EventConnectResponse, Conn: c, PrivateData: bytes.Clone(r.PrivateData)})
}

// duplicateREP handles a repeated REP: the RTU was lost, or the caller is slow.
func (c *Conn) duplicateREP(now time.Duration) {
	c.manager.counters.DuplicateREP++
	switch {
	case c.state == StateEstablished:
		c.sendRTU()
	case c.state == StateREPReceived && c.mraSent:
		c.sendMRA(now)
	}
}

// Establish sends the RTU, with up to 224 bytes of private data. The connection is then
// established; the queue pair must be in RTS. If the RTU is lost, the first packet takes its
// place, or the peer repeats its REP.
func (c *Conn) Establish(private []byte, _ time.Duration) error {
	switch {
	case c.state != StateREPReceived:
		return c.wrongState("establish", StateREPReceived)
	case len(private) > mad.RTUPrivateLen:
		return fmt.Errorf("establish the connection with %v: %d bytes of private data exceed the %d of an RTU: %w", c.peer, len(private), mad.RTUPrivateLen, verbs.ErrInvalid)
	}
	c.stopRetransmission()
	c.state, c.deadline = StateEstablished, 0
	c.rtu = bytes.Clone(private)
	c.sendRTU()
	return nil
}

func (c *Conn) sendRTU() {
	c.manager.send(c.path, &mad.RTU{TransactionID: c.transactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID, PrivateData: c.rtu})
}
