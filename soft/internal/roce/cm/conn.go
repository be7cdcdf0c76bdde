package cm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// State is the state of a connection (IBTA 12.9.7).
type State uint8

// The states.
const (
	StateIdle        State = iota // over
	StateREQSent                  // active: waits for the REP
	StateREPReceived              // active: the caller has to Establish
	StateREQReceived              // passive: the caller has to Accept
	StateREPSent                  // passive: waits for the RTU
	StateEstablished
	StateDREQSent // waits for the DREP
	StateTimeWait
)

var stateNames = [...]string{
	"Idle", "REQ Sent", "REP Received", "REQ Received", "REP Sent", "Established", "DREQ Sent", "TimeWait",
}

// String is the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Conn is one end of a connection.
type Conn struct {
	// Value is the caller's.
	Value any

	manager  *Manager
	listener *Listener // of a passive end
	service  Service
	state    State
	kind     verbs.QPType

	path               Path // its Remote.Port is the one that MADs are sent to
	local, remote      verbs.GID
	peer               netip.AddrPort // its address and port in the words of RDMA CM
	localID, remoteID  uint32
	sourcePort         uint16 // that the peer's packets come from; 0: it has not said
	caGUID             uint64 // the peer's
	transactionID      uint64 // of the handshake
	transactionIDClose uint64 // of the DREQ
	transactionIDProbe uint64 // of the last question whether the peer knows the connection
	probed             time.Duration

	localQPN, remoteQPN uint32
	localPSN, remotePSN uint32
	mtu                 verbs.MTU
	responderResources  uint8
	initiatorDepth      uint8
	retryCount          uint8
	rnrRetry            uint8
	ackTimeout          uint8 // of this end's queue pair
	timeWait            uint8
	trafficClass        uint8
	peerSRQ, peerFlow   bool
	alternate           bool // the REQ has an alternate path

	timer      timer
	repetition repetition // of message
	// maxCMRetries is how often a message is repeated; as many MRAs count.
	maxCMRetries, mras uint8
	deadline           time.Duration  // when to give up; 0: by retries only
	deadlineCause      Cause          // why, then
	message            *[mad.Len]byte // REQ, REP or DREQ, as long as it may be sent again
	rtu                []byte         // private data of the RTU

	passive       bool
	remoteKnown   bool // remoteID, caGUID and remoteQPN are set
	mraSent       bool
	inPeers       bool // manager.peers has it
	requested     bool // its EventConnectRequest has not been taken
	seen          bool // the caller knows it
	closed        bool // the caller has closed it
	halfOpen      bool // it has a place among the half-open
	handshakeOver bool // and needs it no more
}

// State is the present state.
func (c *Conn) State() State { return c.state }

// Passive reports whether the peer has asked for the connection.
func (c *Conn) Passive() bool { return c.passive }

// Service is what was connected to.
func (c *Conn) Service() Service { return c.service }

// Path is the way between the ends; Remote.Port is the UDP port of the peer.
func (c *Conn) Path() Path { return c.path }

// PeerAddr is the peer's address and, of a passive end, the port that the peer named
// as its own; of an active end, the port connected to.
func (c *Conn) PeerAddr() netip.AddrPort { return c.peer }

// Params is what the ends have agreed on so far, as this end sees it.
type Params struct {
	Transport          verbs.QPType
	LocalQPN           uint32 // 0 until Accept or Prepare
	RemoteQPN          uint32 // 0 as long as the peer has not named it
	ResponderResources uint8  // reads and atomics of the peer that this end takes
	InitiatorDepth     uint8  // reads and atomics of this end that the peer takes
	RetryCount         uint8
	RNRRetry           uint8
	PathMTU            verbs.MTU
	PeerSRQ            bool // the peer's queue pair has a shared receive queue
	PeerFlowControl    bool // the peer wants end-to-end flow control
}

// Params returns what the ends have agreed on. On a passive end, until Accept, it is what
// the peer offers: more than it can be agreed to, less always.
func (c *Conn) Params() Params {
	return Params{
		Transport: c.kind, LocalQPN: c.localQPN, RemoteQPN: c.remoteQPN,
		ResponderResources: c.responderResources, InitiatorDepth: c.initiatorDepth,
		RetryCount: c.retryCount, RNRRetry: c.rnrRetry, PathMTU: c.mtu, PeerSRQ: c.peerSRQ, PeerFlowControl: c.peerFlow,
	}
}

// comesFromPeer reports whether a MAD has come by the connection's path, and from the port
// that the peer has said that it sends from.
func (c *Conn) comesFromPeer(from *Path) bool {
	return c.comesFromAddress(from) && (c.sourcePort == 0 || c.sourcePort == from.Remote.Port())
}

// comesFromAddress is comesFromPeer for whatever device has the peer's address now. A peer with
// port 4791 sends from any port.
func (c *Conn) comesFromAddress(from *Path) bool {
	return samePeer(&c.path, from) && from.remoteGID() == c.remote && from.localGID() == c.local
}

// samePeer compares the ports that a peer sends from.
func samePeer(path, from *Path) bool {
	port := path.Remote.Port()
	return port == wire.UDPPort || port == from.Remote.Port()
}

// wrongState is the error of a call that the state does not allow.
func (c *Conn) wrongState(call string, legal State, or ...State) error {
	states := fmt.Sprintf("%v", legal)
	for _, s := range or {
		states += fmt.Sprintf(" or %v", s)
	}
	return fmt.Errorf("%s the connection with %v: it is in state %v, and would have to be in %s: %w", call, c.peer, c.state, states, verbs.ErrState)
}

// deliver marks the connection request as taken, and reports whether the caller is to
// know of it.
func (c *Conn) deliver() bool {
	c.requested = false
	c.releaseHalfOpen()
	c.seen = c.state == StateREQReceived
	return c.seen
}

// releaseHalfOpen gives up the place among the half-open, once the handshake is over and its
// request has been taken.
func (c *Conn) releaseHalfOpen() {
	if c.halfOpen && c.handshakeOver && !c.requested {
		c.halfOpen = false
		c.manager.leave(c.listener)
	}
}

func (c *Conn) endHandshake() {
	c.handshakeOver = true
	c.releaseHalfOpen()
}

// wait has expire called at that time, or at the deadline if that is sooner.
func (c *Conn) wait(at time.Duration) {
	if c.deadline != 0 {
		at = min(at, c.deadline)
	}
	c.manager.timers.set(&c.timer, at)
}

// send sends the message that is waited for an answer to.
func (c *Conn) send(now time.Duration) {
	c.manager.put(c.path, c.message)
	at := now + c.repetition.wait
	if c.state == StateREQSent {
		at += c.manager.jitter(c.repetition.wait)
	}
	c.wait(at)
}

// startRetransmission enters a state in which a message is repeated.
func (c *Conn) startRetransmission(s State, now time.Duration) {
	c.state = s
	c.repetition.start(c.manager, c.remote, c.maxCMRetries, now)
	c.send(now)
}

// answered notes that the peer has answered the message.
func (c *Conn) answered(now time.Duration) {
	if c.mras == 0 { // else the peer has taken its time
		c.repetition.answered(c.manager, c.remote, now)
	}
}

// stopRetransmission ends the repetition.
func (c *Conn) stopRetransmission() {
	c.manager.timers.remove(&c.timer)
	c.manager.release(c.message)
	c.message = nil
}

// awaitsAnswer reports whether something was sent that the peer has to answer.
func (c *Conn) awaitsAnswer() bool {
	return c.state == StateREQSent || c.state == StateREPSent || c.state == StateDREQSent
}

// expire does what is due: repeat, ask for patience, or give up.
func (c *Conn) expire(now time.Duration) {
	if c.state == StateTimeWait {
		c.remove()
		return
	}
	if c.deadline != 0 && now >= c.deadline {
		c.giveUp(c.deadlineCause, now)
		return
	}
	if !c.awaitsAnswer() {
		c.sendMRA(now)
		return
	}
	if !c.repetition.next() {
		c.giveUp(CauseTimeout, now)
		return
	}
	c.manager.counters.Retransmitted++
	c.send(now)
}

// awaitCaller enters a state in which the caller has to answer, and has the peer told
// before it repeats its message, which it does after its time-out.
func (c *Conn) awaitCaller(s State, peerWaits time.Duration, now time.Duration) {
	c.state, c.mraSent = s, false
	c.deadline, c.deadlineCause = now+c.manager.config.HandshakeTimeout, CauseUnanswered
	c.wait(now + peerWaits/2)
}

// sendMRA asks the peer for the time that the caller has.
func (c *Conn) sendMRA(time.Duration) {
	c.mraSent = true
	message := mad.MessageREQ
	if !c.passive {
		message = mad.MessageREP
	}
	c.manager.counters.MRAsSent++
	c.manager.send(c.path, &mad.MRA{
		TransactionID: c.transactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID,
		Message: message, ServiceTimeout: codeOf(c.manager.config.HandshakeTimeout),
	})
	c.wait(c.deadline)
}

func (m *Manager) receiveMRA(r *mad.MRA, from Path, now time.Duration) {
	c := m.find(r.RemoteCommID, r.LocalCommID, from)
	switch {
	case c == nil:
		return
	case r.TransactionID != c.transactionID:
		m.counters.WrongTransaction++
		return
	case c.state == StateREQSent && r.Message == mad.MessageREQ, c.state == StateREPSent && r.Message == mad.MessageREP:
	default:
		m.counters.WrongState++
		return
	}
	if c.mras >= c.maxCMRetries {
		m.counters.WrongState++
		return
	}
	c.mras++
	at := now + min(duration(r.ServiceTimeout), m.config.MaxServiceTimeout) + c.repetition.most
	c.wait(max(at, c.timer.at))
}

// giveUp ends a connection of which nothing more is to be expected.
func (c *Conn) giveUp(cause Cause, now time.Duration) {
	m := c.manager
	if c.passive && c.state != StateDREQSent {
		m.counters.HandshakesExpired++
	}
	switch c.state {
	case StateREQSent:
		c.sendTimeoutREJ(mad.MessageREQ)
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.remove()
	case StateREQReceived:
		// Not a time-out: the kernel finds no connection for that one, since it does not
		// know our communication ID yet, and would repeat its REQ.
		c.sendREJ(mad.MessageREQ, mad.ReasonNoResources, nil, nil)
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.remove()
	case StateREPReceived, StateREPSent:
		c.sendTimeoutREJ(c.rejected())
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.enterTimeWait(now)
	case StateDREQSent:
		m.post(Event{Type: EventDisconnected, Conn: c, Cause: cause})
		c.enterTimeWait(now)
	}
}

// sendTimeoutREJ says that nothing is waited for any more. Its receiver finds the connection by
// the CA GUID in it: of an active end that has seen no REP, because that end does not know
// the receiver's communication ID; the kernel, always.
func (c *Conn) sendTimeoutREJ(message mad.Message) {
	c.sendREJ(message, mad.ReasonTimeout, binary.BigEndian.AppendUint64(nil, c.manager.config.CAGUID), nil)
}

// rejected is the message of the peer that a REJ rejects in the present state.
func (c *Conn) rejected() mad.Message {
	switch c.state {
	case StateREQReceived:
		return mad.MessageREQ
	case StateREPReceived:
		return mad.MessageREP
	}
	return mad.MessageOther
}

// sendREJ rejects a message of the peer, or ends the handshake.
func (c *Conn) sendREJ(message mad.Message, reason mad.Reason, info, private []byte) {
	c.manager.sendREJ(c.path, &mad.REJ{
		TransactionID: c.transactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID,
		Message: message, Reason: reason, Info: info, PrivateData: private,
	})
}

func (m *Manager) receiveREJ(r *mad.REJ, from Path, now time.Duration) {
	var c *Conn
	if r.RemoteCommID == 0 && r.Reason == mad.ReasonTimeout && len(r.Info) >= 8 {
		// From an active end that has given up before it knew our communication ID.
		c = m.requests[requestKey{from.remoteGID(), binary.BigEndian.Uint64(r.Info), r.LocalCommID}]
		if c == nil {
			m.counters.UnknownConnection++
		} else if !c.comesFromPeer(&from) {
			m.counters.WrongPeer++
			c = nil
		}
	} else {
		// A device that has come back at the peer's address sends from another port, and knows
		// nothing of the connection. The transaction ID shows that it has got the message.
		comes := (*Conn).comesFromPeer
		if r.Reason == mad.ReasonInvalidCommID {
			comes = (*Conn).comesFromAddress
		}
		c = m.findBy(r.RemoteCommID, r.LocalCommID, from, comes)
	}
	if c == nil {
		return
	}
	if r.TransactionID != c.transactionID {
		m.counters.WrongTransaction++
		return
	}
	e := Event{
		Type: EventRejected, Conn: c, Cause: CauseREJ, Reason: r.Reason, Message: r.Message,
		Info: bytes.Clone(r.Info), PrivateData: bytes.Clone(r.PrivateData),
	}
	switch c.state {
	case StateREQSent, StateREQReceived:
		m.post(e)
		c.remove()
	case StateREPSent, StateREPReceived:
		m.post(e)
		c.enterTimeWait(now)
	case StateEstablished, StateDREQSent:
		e.Type = EventDisconnected
		m.post(e)
		c.enterTimeWait(now)
	default:
		m.counters.WrongState++
	}
}

// enterTimeWait keeps the IDs and the queue pair number of the connection as long as
// packets and MADs of it may come (IBTA 12.9.8).
func (c *Conn) enterTimeWait(now time.Duration) {
	c.stopRetransmission()
	c.leavePeers()
	c.state, c.deadline, c.rtu = StateTimeWait, 0, nil
	c.wait(now + min(duration(c.timeWait), c.manager.config.MaxTimeWait))
}

// remove forgets the connection.
func (c *Conn) remove() {
	m := c.manager
	c.stopRetransmission()
	c.leavePeers()
	c.state = StateIdle
	delete(m.conns, c.localID)
	if c.passive {
		delete(m.requests, c.requestKey())
	}
	c.endHandshake()
	m.post(Event{Type: EventTimeWaitExit, Conn: c})
}

func (c *Conn) requestKey() requestKey { return requestKey{c.remote, c.caGUID, c.remoteID} }

func (c *Conn) peerKey() peerKey { return peerKey{c.remote, c.caGUID, c.remoteQPN} }

// joinPeers makes the connection the one of the peer's queue pair; false: there is one.
func (c *Conn) joinPeers() bool {
	m := c.manager
	if m.peers[c.peerKey()] != nil {
		return false
	}
	m.peers[c.peerKey()] = c
	c.inPeers = true
	return true
}

func (c *Conn) leavePeers() {
	if c.inPeers {
		delete(c.manager.peers, c.peerKey())
		c.inPeers = false
	}
}

// checkStale handles a message that names the queue pair of another connection with the
// same peer: the peer of that one is asked whether it knows it.
func (m *Manager) checkStale(key peerKey, now time.Duration) bool {
	c := m.peers[key]
	if c == nil {
		return false
	}
	m.counters.StaleConnection++
	if c.state == StateEstablished && (c.transactionIDProbe == 0 || now-c.probed >= c.repetition.most) {
		c.probed = now
		c.transactionIDProbe = m.newTransactionID(c.path.Local.Port())
		m.counters.Probes++
		// No connection has queue pair 0. See the package's comment about hostile peers.
		m.send(c.path, &mad.DREQ{TransactionID: c.transactionIDProbe, LocalCommID: c.localID, RemoteCommID: c.remoteID})
	}
	return true
}

// Reject refuses a request (EventConnectRequest) or a response (EventConnectResponse), and
// also ends a handshake that has been accepted. The connection is over then.
func (c *Conn) Reject(p RejectParams, now time.Duration) error {
	setDefault(&p.Reason, mad.ReasonConsumerDefined)
	if len(p.PrivateData) > mad.REJPrivateLen || len(p.Info) > mad.InfoLen {
		return fmt.Errorf("reject the connection with %v: %d bytes of private data and %d of additional information, at most %d and %d are possible: %w",
			c.peer, len(p.PrivateData), len(p.Info), mad.REJPrivateLen, mad.InfoLen, verbs.ErrInvalid)
	}
	switch c.state {
	case StateREQReceived:
		c.sendREJ(c.rejected(), p.Reason, p.Info, p.PrivateData)
		c.remove()
	case StateREPReceived, StateREPSent:
		c.sendREJ(c.rejected(), p.Reason, p.Info, p.PrivateData)
		c.enterTimeWait(now)
	default:
		return c.wrongState("reject", StateREQReceived, StateREPReceived, StateREPSent)
	}
	return nil
}

// RejectParams says why.
type RejectParams struct {
	Reason      mad.Reason // 0: mad.ReasonConsumerDefined
	Info        []byte     // up to 72 bytes, meaning as the reason has it
	PrivateData []byte     // up to 148 bytes
}

// Close gives the connection up, in whatever state it is: the peer gets a REJ or a DREQ
// where that is due. No event but EventTimeWaitExit follows.
func (c *Conn) Close(now time.Duration) {
	c.closed = true
	switch c.state {
	case StateREQSent:
		c.sendTimeoutREJ(mad.MessageREQ)
		c.remove()
	case StateREQReceived, StateREPReceived, StateREPSent:
		_ = c.Reject(RejectParams{}, now)
	case StateEstablished:
		_ = c.Disconnect(DisconnectParams{}, now)
	}
}
