package cm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// RejectParams are the parameters of [Conn.Reject].
type RejectParams struct {
	Reason      mad.Reason // 0: verbs.CMRejectConsumer
	Info        []byte     // up to 72 bytes; the reason defines the meaning
	PrivateData []byte     // up to 148 bytes
}

// Reject rejects a request (EventConnectRequest) or a response (EventConnectResponse), or ends
// a handshake after Accept. The connection has then ended.
func (c *Conn) Reject(p RejectParams, now time.Duration) error {
	setDefault(&p.Reason, verbs.CMRejectConsumer)
	if len(p.PrivateData) > mad.REJPrivateLen || len(p.Info) > mad.InfoLen {
		return fmt.Errorf("reject the connection with %v: %d bytes of private data and %d of additional information; the limits are %d and %d: %w",
			c.peer, len(p.PrivateData), len(p.Info), mad.REJPrivateLen, mad.InfoLen, verbs.ErrInvalid)
	}
	switch c.state {
	case StateREQReceived:
		c.sendREJ(c.rejectedMessage(), p.Reason, p.Info, p.PrivateData)
		c.remove()
	case StateREPReceived, StateREPSent:
		c.sendREJ(c.rejectedMessage(), p.Reason, p.Info, p.PrivateData)
		c.enterTimeWait(now)
	default:
		return c.wrongState("reject", StateREQReceived, StateREPReceived, StateREPSent)
	}
	return nil
}

// sendTimeoutREJ tells the peer that this end has stopped waiting. The CA GUID in it
// identifies the connection if the sender is an active end without a REP, which does not know
// the receiver's communication ID. The kernel always identifies the connection by it.
func (c *Conn) sendTimeoutREJ(message mad.Message) {
	c.sendREJ(message, verbs.CMRejectTimeout, binary.BigEndian.AppendUint64(nil, c.manager.config.CAGUID), nil)
}

// rejectedMessage returns the peer's message that a REJ rejects in the current state.
func (c *Conn) rejectedMessage() mad.Message {
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
	if r.RemoteCommID == 0 && r.Reason == verbs.CMRejectTimeout && len(r.Info) >= 8 {
		// From an active end that gave up before it knew our communication ID.
		c = m.requests[requestKey{from.remoteGID(), binary.BigEndian.Uint64(r.Info), r.LocalCommID}]
		if c == nil {
			m.counters.UnknownConnection++
		} else if !c.isFromPeer(&from) {
			m.counters.WrongPeer++
			c = nil
		}
	} else {
		// A device that has restarted at the peer's address sends from another port, and does
		// not know the connection. The transaction ID shows that it has received our message.
		isFrom := (*Conn).isFromPeer
		if r.Reason == verbs.CMRejectInvalidCommID {
			isFrom = (*Conn).isFromAddress
		}
		c = m.findBy(r.RemoteCommID, r.LocalCommID, from, isFrom)
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
	case StateEstablished, StateDREQSent, StateDREQReceived:
		e.Type = EventDisconnected
		m.post(e)
		c.enterTimeWait(now)
	default:
		m.counters.WrongState++
	}
}
