package cm

import (
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
	StateIdle        State = iota // ended
	StateREQSent                  // active: waits for the REP
	StateREPReceived              // active: the caller has to Establish
	StateREQReceived              // passive: the caller has to Accept
	StateREPSent                  // passive: waits for the RTU
	StateEstablished
	StateDREQSent     // waits for the DREP
	StateDREQReceived // waits for requests of its queue pair, then sends the DREP
	StateTimeWait
)

var stateNames = [...]string{
	"Idle", "REQ Sent", "REP Received", "REQ Received", "REP Sent", "Established", "DREQ Sent", "DREQ Received", "TimeWait",
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
	// Value belongs to the caller.
	Value any

	manager  *Manager
	listener *Listener // of a passive end
	state    State
	kind     verbs.QPType

	path               Path // Remote.Port is the destination of MADs
	local, remote      verbs.GID
	peer               netip.AddrPort // the peer's address and port in RDMA CM's terms
	localID, remoteID  uint32
	sourcePort         uint16 // UDP source port of the peer's packets; 0: not named
	caGUID             uint64 // the peer's
	transactionID      uint64 // of the handshake
	transactionIDClose uint64 // of the DREQ
	transactionIDProbe uint64 // of the last probe: whether the peer still has the connection
	probedAt           time.Duration

	localQPN, remoteQPN uint32
	localPSN, remotePSN uint32
	mtu                 verbs.MTU
	responderResources  uint8
	initiatorDepth      uint8
	retryCount          uint8
	rnrRetry            uint8
	peerRNRRetry        uint8 // of the peer's queue pair; on a passive end, what the peer has for this one
	ackTimeout          uint8 // for this end's queue pair
	timeWait            uint8
	trafficClass        uint8
	peerSRQ             bool
	alternate           bool // the REQ has an alternate path

	timer          timer
	retransmission retransmission // of message
	// maxCMRetries bounds the repetitions of a message, and the MRAs that prolong its wait.
	maxCMRetries, mraCount uint8
	deadline               time.Duration  // when to give up; 0: after the retries only
	deadlineCause          Cause          // the cause to report then
	message                *[mad.Len]byte // REQ, REP or DREQ, while it may have to be repeated
	rtu                    []byte         // private data of the RTU
	held                   *heldDREQ      // in StateDREQReceived

	passive       bool
	remoteKnown   bool // remoteID, caGUID and remoteQPN are set
	mraSent       bool
	inPeers       bool // it is in manager.peers
	requestQueued bool // its EventConnectRequest has not been taken
	reported      bool // the caller knows it
	closed        bool // the caller has closed it
	halfOpen      bool // it counts as half-open
	handshakeOver bool // it need not count any more
}

// State returns the current state.
func (c *Conn) State() State { return c.state }

// Passive reports whether the peer requested the connection.
func (c *Conn) Passive() bool { return c.passive }

// Path returns the path between the ends; Remote.Port is the peer's UDP port.
func (c *Conn) Path() Path { return c.path }

// PeerAddr returns the peer's address with a port: on a passive end, the port that the peer
// named as its own; on an active end, the port connected to.
func (c *Conn) PeerAddr() netip.AddrPort { return c.peer }

// Params are the parameters that the ends have agreed on so far, as this end sees them.
type Params struct {
	Transport          verbs.QPType
	LocalQPN           uint32 // 0 until Accept or Prepare
	RemoteQPN          uint32 // 0 until the peer has named it
	ResponderResources uint8  // reads and atomics of the peer that this end accepts
	InitiatorDepth     uint8  // reads and atomics of this end that the peer accepts
	RetryCount         uint8
	RNRRetry           uint8
	PathMTU            verbs.MTU
	PeerSRQ            bool // the peer's queue pair has a shared receive queue
}

// Params returns the agreed parameters. On a passive end, until Accept, they are the peer's
// offer: Accept may agree to less, but not to more.
func (c *Conn) Params() Params {
	return Params{
		Transport: c.kind, LocalQPN: c.localQPN, RemoteQPN: c.remoteQPN,
		ResponderResources: c.responderResources, InitiatorDepth: c.initiatorDepth,
		RetryCount: c.retryCount, RNRRetry: c.rnrRetry, PathMTU: c.mtu, PeerSRQ: c.peerSRQ,
	}
}

// isFromPeer reports whether a MAD arrived by the connection's path, and from the source
// port that the peer has named.
func (c *Conn) isFromPeer(from *Path) bool {
	return c.isFromAddress(from) && (c.sourcePort == 0 || c.sourcePort == from.Remote.Port())
}

// isFromAddress is isFromPeer for any device that has the peer's address now. A peer
// with port 4791 may send from any port.
func (c *Conn) isFromAddress(from *Path) bool {
	return samePeer(&c.path, from) && from.remoteGID() == c.remote && from.localGID() == c.local
}

// samePeer reports whether the source port of a MAD may be the peer's.
func samePeer(path, from *Path) bool {
	port := path.Remote.Port()
	return port == wire.UDPPort || port == from.Remote.Port()
}

// wrongState returns the error of a call that is not allowed in the current state.
func (c *Conn) wrongState(call string, legal State, or ...State) error {
	states := fmt.Sprintf("%v", legal)
	for _, s := range or {
		states += fmt.Sprintf(" or %v", s)
	}
	return fmt.Errorf("%s the connection with %v: it is in state %v, must be in %s: %w", call, c.peer, c.state, states, verbs.ErrState)
}

// deliver marks the connection request as taken, and reports whether the caller must see it.
func (c *Conn) deliver() bool {
	c.requestQueued = false
	c.releaseHalfOpen()
	c.reported = c.state == StateREQReceived
	return c.reported
}

// releaseHalfOpen ends the count as half-open, once the handshake is over and its request has
// been taken.
func (c *Conn) releaseHalfOpen() {
	if c.halfOpen && c.handshakeOver && !c.requestQueued {
		c.halfOpen = false
		c.manager.unadmit(c.listener, c.remote)
	}
}

func (c *Conn) endHandshake() {
	c.handshakeOver = true
	c.releaseHalfOpen()
}

// wait schedules expire at that time, or at the deadline if that is sooner.
func (c *Conn) wait(at time.Duration) {
	if c.deadline != 0 {
		at = min(at, c.deadline)
	}
	c.manager.timers.Set(&c.timer, at)
}

// send sends the message that needs a response.
func (c *Conn) send(now time.Duration) {
	c.manager.queueMAD(c.path, c.message)
	at := now + c.retransmission.wait
	if c.state == StateREQSent {
		at += c.manager.jitter(c.retransmission.wait)
	}
	c.wait(at)
}

// startRetransmission enters a state in which a message is repeated.
func (c *Conn) startRetransmission(s State, now time.Duration) {
	c.state = s
	c.retransmission.start(c.manager, c.remote, c.maxCMRetries, now)
	c.send(now)
}

// noteResponse records that the peer has responded to the message.
func (c *Conn) noteResponse(now time.Duration) {
	if c.mraCount == 0 { // with an MRA, the response time says nothing about the round trip
		c.retransmission.noteResponse(c.manager, c.remote, now)
	}
}

// stopRetransmission ends the repetitions.
func (c *Conn) stopRetransmission() {
	c.manager.timers.Remove(&c.timer)
	c.manager.release(c.message)
	c.message = nil
}

// awaitsResponse reports whether the peer has to respond to a message.
func (c *Conn) awaitsResponse() bool {
	return c.state == StateREQSent || c.state == StateREPSent || c.state == StateDREQSent
}

// awaited is the transaction ID of the message that the peer has to respond to, or zero.
func (c *Conn) awaited() uint64 {
	switch {
	case !c.awaitsResponse():
		return 0
	case c.state == StateDREQSent:
		return c.transactionIDClose
	}
	return c.transactionID
}

// expire handles an expired timer: it repeats the message, sends an MRA, or gives up.
func (c *Conn) expire(now time.Duration) {
	switch c.state {
	case StateTimeWait:
		c.remove()
		return
	case StateDREQReceived:
		c.answerWhenComplete(now)
		return
	}
	if c.deadline != 0 && now >= c.deadline {
		c.giveUp(c.deadlineCause, now)
		return
	}
	if !c.awaitsResponse() {
		c.sendMRA(now)
		return
	}
	if !c.retransmission.next() {
		c.giveUp(CauseTimeout, now)
		return
	}
	c.manager.counters.Retransmitted++
	c.send(now)
}

// awaitCaller enters a state in which the caller has to respond. An MRA tells the peer before
// its time-out makes it repeat its message.
func (c *Conn) awaitCaller(s State, peerWaits time.Duration, now time.Duration) {
	c.state, c.mraSent = s, false
	c.deadline, c.deadlineCause = now+c.manager.config.HandshakeTimeout, CauseUnanswered
	c.wait(now + peerWaits/2)
}

// sendMRA asks the peer to wait as long as the caller may take.
func (c *Conn) sendMRA(time.Duration) {
	c.mraSent = true
	message := mad.MessageREQ
	if !c.passive {
		message = mad.MessageREP
	}
	c.manager.counters.MRAsSent++
	c.manager.send(c.path, &mad.MRA{
		TransactionID: c.transactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID,
		Message: message, ServiceTimeout: timeoutCode(c.manager.config.HandshakeTimeout),
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
	if c.mraCount >= c.maxCMRetries {
		m.counters.WrongState++
		return
	}
	c.mraCount++
	at := now + min(timeoutDuration(r.ServiceTimeout), m.config.MaxServiceTimeout) + c.retransmission.responseTimeout
	c.wait(max(at, c.timer.At()))
}

// giveUp ends a connection whose peer or caller has not responded.
func (c *Conn) giveUp(cause Cause, now time.Duration) {
	m := c.manager
	if c.passive && c.state != StateDREQSent {
		m.counters.HandshakesExpired++
	}
	switch c.state {
	case StateREQSent:
		if !cause.reported() { // otherwise the REJ would only be refused as well
			c.sendTimeoutREJ(mad.MessageREQ)
		}
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.remove()
	case StateREQReceived:
		// Not a time-out: the kernel does not know our communication ID yet. It would find no
		// connection for a REJ with that reason, and would repeat its REQ.
		c.sendREJ(mad.MessageREQ, verbs.CMRejectNoResources, nil, nil)
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.remove()
	case StateREPReceived, StateREPSent:
		c.sendTimeoutREJ(c.rejectedMessage())
		m.post(Event{Type: EventUnreachable, Conn: c, Cause: cause})
		c.enterTimeWait(now)
	case StateDREQSent:
		m.post(Event{Type: EventDisconnected, Conn: c, Cause: cause})
		c.enterTimeWait(now)
	}
}

// enterTimeWait keeps the IDs and the queue pair number of the connection reserved while late
// packets and MADs may arrive (IBTA 12.9.8).
func (c *Conn) enterTimeWait(now time.Duration) {
	c.stopRetransmission()
	c.removeFromPeers()
	c.state, c.deadline, c.rtu, c.held = StateTimeWait, 0, nil, nil
	c.wait(now + min(timeoutDuration(c.timeWait), c.manager.config.MaxTimeWait))
}

// remove forgets the connection.
func (c *Conn) remove() {
	m := c.manager
	c.stopRetransmission()
	c.removeFromPeers()
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

// addToPeers registers the connection for the peer's queue pair, and reports false if another
// connection is registered.
func (c *Conn) addToPeers() bool {
	m := c.manager
	if m.peers[c.peerKey()] != nil {
		return false
	}
	m.peers[c.peerKey()] = c
	c.inPeers = true
	return true
}

func (c *Conn) removeFromPeers() {
	if c.inPeers {
		delete(c.manager.peers, c.peerKey())
		c.inPeers = false
	}
}

// checkStale reports whether a message names the peer's queue pair of another connection. If
// so, it asks the peer whether it still has that connection.
func (m *Manager) checkStale(key peerKey, now time.Duration) bool {
	c := m.peers[key]
	if c == nil {
		return false
	}
	m.counters.StaleConnection++
	if c.state == StateEstablished && (c.transactionIDProbe == 0 || now-c.probedAt >= c.retransmission.responseTimeout) {
		c.probedAt = now
		c.transactionIDProbe = m.newTransactionID(c.path.Local.Port())
		m.counters.Probes++
		// No connection has queue pair 0. See "Hostile peers" in the package comment.
		m.send(c.path, &mad.DREQ{TransactionID: c.transactionIDProbe, LocalCommID: c.localID, RemoteCommID: c.remoteID})
	}
	return true
}

// Close ends the connection in any state: the peer gets a REJ or a DREQ if it needs one. Only
// EventTimeWaitExit follows.
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
	case StateDREQReceived:
		c.answerDREQ(now)
	}
}
