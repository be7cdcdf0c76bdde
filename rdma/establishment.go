package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// establishment connects the two ends of a connection, and tells each when the other has left.
// It belongs to one connection, which calls it on the engine's goroutine. It calls ready, fail
// or peerClosed of the connection, and sets the connection's deadline.
type establishment interface {
	// due is called at the connection's deadline while it is Connecting and, over UC, Ready.
	due(now time.Time)
	// wordWritten is called when the peer may have written to the connection's word.
	wordWritten()
	// signalCompleted is called when the ready signal has completed while Connecting.
	signalCompleted(status verbs.Status, vendor uint32)
	// messageReceived is called when a message has come while Connecting. It makes the connection
	// Ready, since the peer sends only when it is Ready.
	messageReceived()
	// disconnectWhileConnecting reports whether only a disconnect notice can tell the peer that this end
	// closes while Connecting: the peer may be Ready already, or soon.
	disconnectWhileConnecting() bool
	// postDisconnect posts the connection's signal behind its tasks. What the signal writes
	// notifies the peer that this end closes, or else ended does so when the signal has
	// completed.
	postDisconnect()
	// disconnectArrived reports whether the peer's disconnect notice has arrived.
	disconnectArrived() bool
	// disconnectAnswered reports whether each end answers the other's disconnect notice by its own,
	// when its tasks at the device are done, and waits for this answer.
	disconnectAnswered() bool
	// disconnectHeld reports whether the device knows that the peer ends the connection, and has
	// not reported it.
	disconnectHeld() bool
	// ended is called when the connection's signal has completed after its tasks, and when the
	// queue pair is put in error. It may be called again.
	ended()
	// release is called when the connection is destroyed.
	release()
}
