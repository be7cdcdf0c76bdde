package cm

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
)

// EventType is the type of an event.
type EventType uint8

// The events. Each lists the fields of Event that are set; Conn is set unless stated
// otherwise.
const (
	// EventConnectRequest: a REQ has arrived. Listener and PrivateData (56 bytes) are set.
	// Call Accept or Reject, within Config.HandshakeTimeout.
	EventConnectRequest EventType = iota + 1
	// EventConnectResponse: the peer accepts. PrivateData is that of its REP, 196 bytes. Call
	// Establish or Reject.
	EventConnectResponse
	// EventEstablished: the passive side is established. PrivateData is that of the RTU, 224
	// bytes; nil if a packet came in its place.
	EventEstablished
	// EventRejected: the peer ended the handshake by a REJ (CauseREJ). Reason, Message, Info
	// and PrivateData (148 bytes) are set. With CauseStale this end has sent the REJ: the peer
	// named a queue pair that another connection with it uses.
	EventRejected
	// EventUnreachable: the handshake, or the resolution (Resolution is set, Conn is not), did
	// not complete; Cause says why.
	EventUnreachable
	// EventDisconnected: a connection has ended that was established for at least one of the
	// ends; Cause says how. With CauseDREQ and CauseDREP, PrivateData is that of the message.
	// With CauseREJ, Reason, Message, Info and PrivateData are those of the REJ.
	EventDisconnected
	// EventTimeWaitExit is the last event of every connection: the manager has forgotten it,
	// and its queue pair number may be used again.
	EventTimeWaitExit
	// EventSIDRRequest: a SIDR_REQ has arrived. Listener, Request and PrivateData (180 bytes)
	// are set, Conn is not. Call Reply.
	EventSIDRRequest
	// EventSIDRResponse ends a resolution: Resolution, Status, QPN, QKey, Info and PrivateData
	// (136 bytes) are set, Conn is not.
	EventSIDRResponse
)

var eventNames = [...]string{
	EventConnectRequest: "connect request", EventConnectResponse: "connect response", EventEstablished: "established",
	EventRejected: "rejected", EventUnreachable: "unreachable", EventDisconnected: "disconnected",
	EventTimeWaitExit: "time-wait exit", EventSIDRRequest: "SIDR request", EventSIDRResponse: "SIDR response",
}

// String returns the event's name.
func (t EventType) String() string {
	if t > 0 && int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// Cause is the reason for an end.
type Cause uint8

// The causes.
const (
	CauseTimeout            Cause = iota + 1 // no response to any retransmission
	CauseDeadline                            // the deadline of the call has passed
	CausePortUnreachable                     // no process has the peer's UDP port
	CauseHostUnreachable                     // the network cannot reach the peer's host
	CauseNetworkUnreachable                  // nor its network
	CauseProhibited                          // the network's rules forbid that
	CauseNoRoute                             // this host has no route to the peer's address
	CauseUnanswered                          // the application did not Accept or Establish in time
	CauseREJ                                 // the peer sent a REJ
	CauseDREQ                                // the peer sent a DREQ
	CauseDREP                                // the peer responded to our DREQ
	CauseStale                               // the peer does not have the connection any more
)

// reported reports whether the network has said so.
func (c Cause) reported() bool { return CausePortUnreachable <= c && c <= CauseProhibited }

var causeNames = [...]string{
	CauseTimeout: "no response from the peer", CauseDeadline: "deadline exceeded",
	CausePortUnreachable: "no process has the peer's UDP port", CauseHostUnreachable: "the network cannot reach the host",
	CauseNetworkUnreachable: "the peer's network cannot be reached", CauseProhibited: "prohibited by the network", CauseNoRoute: "this host has no route to the peer",
	CauseUnanswered: "no response from the application in time",
	CauseREJ:        "rejected by the peer", CauseDREQ: "disconnected by the peer", CauseDREP: "disconnected",
	CauseStale: "the peer no longer has the connection",
}

// String describes the cause.
func (c Cause) String() string {
	if c > 0 && int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// Event is an event to deliver. The receiver owns its slices.
type Event struct {
	Type       EventType
	Conn       *Conn
	Listener   *Listener
	Resolution *Resolution
	Request    *SIDRRequest

	Cause       Cause
	Reason      mad.Reason
	Message     mad.Message
	Info        []byte
	PrivateData []byte

	Status    mad.SIDRStatus
	QPN, QKey uint32
}

// post queues an event for NextEvent.
func (m *Manager) post(e Event) { m.events.Push(e) }

// NextEvent removes the oldest event and stores it in e; false: there is none.
func (m *Manager) NextEvent(e *Event) bool {
	for m.events.Len() > 0 {
		*e = m.events.Pop()
		switch {
		case e.Type == EventConnectRequest:
			if e.Conn.deliver() {
				return true
			}
		case e.Type == EventSIDRRequest:
			if e.Request.deliver() {
				return true
			}
		case e.Conn != nil:
			// A request that ended before it was taken is not reported.
			if e.Conn.reported && (!e.Conn.closed || e.Type == EventTimeWaitExit) {
				return true
			}
		case !e.Resolution.closed:
			return true
		}
	}
	*e = Event{}
	return false
}
