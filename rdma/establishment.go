package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// establishment connects the two ends of a connection, and tells each when the other has left.
// It belongs to one connection, which calls it on the engine's goroutine. It calls ready, fail
// or do of the connection, and sets the connection's deadline.
type establishment interface {
	handle(ev event)
	// peer is what it knows of the peer: that it has closed the connection, or Unknown.
	peer() life.Peer
	// disconnectMethod is how the peer is to know that this end closes, while Connecting or Ready.
	disconnectMethod() life.DisconnectMethod
	// polls reports whether a closing connection has to be looked at, since the device does not report
	// what the peer does.
	polls() bool
	// tell tells the peer that this end closes, when the tasks of this end are done.
	tell()
	// queuePairShut is called when the queue pair is put in error. It may be called again.
	queuePairShut()
	// release is called when the connection is destroyed.
	release()
}

// event is an event that an establishment handles.
type event struct {
	kind   eventKind
	now    time.Time    // deadlinePassed
	status verbs.Status // signalCompleted
	vendor uint32       // signalCompleted
}

type eventKind uint8

const (
	// deadlinePassed: the deadline of the connection, while it is Connecting and, over UC, Ready.
	deadlinePassed eventKind = iota
	// wordWritten: the peer may have written to the connection's word.
	wordWritten
	// signalCompleted: the ready signal has completed while Connecting.
	signalCompleted
	// messageReceived: a message has come while Connecting. It makes the connection Ready, since
	// the peer sends only when it is Ready.
	messageReceived
)
