package cm

import (
	"bytes"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// DisconnectParams are the parameters of [Conn.Disconnect].
type DisconnectParams struct {
	PrivateData []byte // up to 220 bytes
	// Deadline ends the wait for the DREP; 0: only the retransmissions end it.
	Deadline time.Duration
}

// Disconnect sends a DREQ. EventDisconnected follows, once the peer has responded or the wait
// for its response has ended; at once, if the peer's DREQ has arrived.
func (c *Conn) Disconnect(p DisconnectParams, now time.Duration) error {
	switch {
	case c.state == StateDREQReceived:
		c.answerDREQ(now)
		return nil
	case c.state != StateEstablished:
		return c.wrongState("disconnect", StateEstablished)
	case len(p.PrivateData) > mad.DREQPrivateLen:
		return fmt.Errorf("disconnect from %v: %d bytes of private data exceed the %d of a DREQ: %w", c.peer, len(p.PrivateData), mad.DREQPrivateLen, verbs.ErrInvalid)
	}
	m := c.manager
	c.transactionIDClose = m.newTransactionID(c.path.Local.Port())
	c.message = m.buffer()
	_ = (&mad.DREQ{
		TransactionID: c.transactionIDClose, LocalCommID: c.localID, RemoteCommID: c.remoteID,
		RemoteQPN: c.remoteQPN, PrivateData: p.PrivateData,
	}).Encode(c.message) // cannot fail: the length has been checked
	c.deadline, c.deadlineCause = p.Deadline, CauseDeadline
	c.startRetransmission(StateDREQSent, now)
	return nil
}

func (m *Manager) receiveDREQ(r *mad.DREQ, from Path, now time.Duration) {
	c := m.conns[r.RemoteCommID]
	if c == nil || !c.remoteKnown || c.remoteID != r.LocalCommID {
		// The peer waits for a response even so.
		m.counters.UnknownConnection++
		m.sendDREP(responsePath(r.TransactionID, from), r)
		return
	}
	switch {
	case !c.isFromPeer(&from):
		m.counters.WrongPeer++
		return
	case r.RemoteQPN != c.localQPN:
		m.counters.WrongQPN++
		return
	}
	switch c.state {
	case StateEstablished:
		c.holdDREQ(r, now)
	case StateREPSent, StateREPReceived, StateDREQSent:
		c.disconnectedBy(r, now)
	case StateDREQReceived:
		m.counters.DuplicateDREQ++
	case StateTimeWait:
		m.counters.DuplicateDREQ++
		m.sendDREP(c.path, r)
	default:
		m.counters.WrongState++
	}
}

// heldDREQ is a DREQ that is answered when the requests are complete that the queue pair had when
// the DREQ arrived, and after maxHold at the latest. The peer sends the DREQ when its own requests
// are complete. It may have executed requests of this end whose acknowledgements were lost, or
// are still on their way through shared memory. A peer of this package serves their
// repetitions until the DREP arrives, so that they do not fail. Other peers may not.
type heldDREQ struct {
	dreq     mad.DREQ
	complete func() bool
	until    time.Duration
	check    time.Duration // until the next check; it doubles
}

const (
	maxHold = 500 * time.Millisecond
	// firstCheck and lastCheck bound the times between checks of a held DREQ.
	firstCheck = time.Millisecond
	lastCheck  = 32 * time.Millisecond
)

// holdDREQ answers a DREQ, now or when requests of the queue pair are complete.
func (c *Conn) holdDREQ(r *mad.DREQ, now time.Duration) {
	var complete func() bool
	if requests := c.manager.config.Requests; requests != nil {
		complete = requests(c.localQPN)
	}
	if complete == nil {
		c.disconnectedBy(r, now)
		return
	}
	c.held = &heldDREQ{*r, complete, now + maxHold, firstCheck}
	c.held.dreq.PrivateData = bytes.Clone(r.PrivateData)
	c.state = StateDREQReceived
	c.wait(now + firstCheck)
}

// answerWhenComplete answers the held DREQ, unless it has to wait.
func (c *Conn) answerWhenComplete(now time.Duration) {
	if now < c.held.until && !c.held.complete() {
		c.held.check = min(2*c.held.check, lastCheck)
		c.wait(min(now+c.held.check, c.held.until))
		return
	}
	c.answerDREQ(now)
}

func (c *Conn) answerDREQ(now time.Duration) { c.disconnectedBy(&c.held.dreq, now) }

// disconnectedBy ends the connection by the peer's DREQ.
func (c *Conn) disconnectedBy(r *mad.DREQ, now time.Duration) {
	m := c.manager
	m.sendDREP(c.path, r)
	m.post(Event{Type: EventDisconnected, Conn: c, Cause: CauseDREQ, PrivateData: bytes.Clone(r.PrivateData)})
	c.enterTimeWait(now)
}

func (m *Manager) sendDREP(p Path, r *mad.DREQ) {
	m.send(p, &mad.DREP{TransactionID: r.TransactionID, LocalCommID: r.RemoteCommID, RemoteCommID: r.LocalCommID})
}

func (m *Manager) receiveDREP(r *mad.DREP, from Path, now time.Duration) {
	// A device that has restarted at the peer's address sends from another port, and responds
	// too, with the transaction ID of the DREQ, which only that device has seen.
	c := m.findBy(r.RemoteCommID, r.LocalCommID, from, (*Conn).isFromAddress)
	cause := CauseDREP
	switch {
	case c == nil:
		return
	case c.state == StateDREQSent && r.TransactionID == c.transactionIDClose:
		// How long the peer took says nothing about the round trip: see heldDREQ.
	case c.state != StateEstablished && c.state != StateDREQSent:
		m.counters.WrongState++
		return
	case c.transactionIDProbe != 0 && r.TransactionID == c.transactionIDProbe:
		cause = CauseStale
	default:
		m.counters.WrongTransaction++
		return
	}
	m.post(Event{Type: EventDisconnected, Conn: c, Cause: cause, PrivateData: bytes.Clone(r.PrivateData)})
	c.enterTimeWait(now)
}

// receiveLAP responds to the offer of an alternate path: it is not supported (IBTA 12.8.2).
func (m *Manager) receiveLAP(r *mad.LAP, from Path) {
	c := m.find(r.RemoteCommID, r.LocalCommID, from)
	switch {
	case c == nil:
	case r.RemoteQPN != c.localQPN:
		m.counters.WrongQPN++
	case c.state != StateEstablished:
		m.counters.WrongState++
	default:
		m.send(c.path, &mad.APR{TransactionID: r.TransactionID, LocalCommID: c.localID, RemoteCommID: c.remoteID, Status: mad.APNotSupported})
	}
}
