package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// establishment is how the two ends of a connection come together, and how one learns
// that the other has left. It belongs to one connection, which calls it on the engine's
// goroutine; it calls ready, fail or peerClosed of the connection, and sets its deadline.
type establishment interface {
	// due is called at the connection's deadline while it is Connecting and, over UC, Ready.
	due(now time.Time)
	// signaled is called when the peer may have written to the connection's word.
	signaled()
	// sent is called when the ready signal that it posted has completed, while
	// Connecting.
	sent(status verbs.Status, vendor uint32)
	// received is called when a message has come while Connecting: the peer sends only
	// when it is Ready. It makes the connection Ready.
	received()
	// goodbyeWhileConnecting reports whether a goodbye is all that tells the peer that this end
	// closes while Connecting: the peer may be Ready already, or about to be.
	goodbyeWhileConnecting() bool
	// sayGoodbye posts the connection's signal behind its tasks. The peer is notified
	// that this end closes by what the signal writes, or when it has completed, by ended.
	sayGoodbye()
	// goodbyeArrived reports whether the peer's goodbye is here.
	goodbyeArrived() bool
	// ended is called when the queue pair is put in error. It may be called again.
	ended()
	// release is called when the connection is destroyed.
	release()
}
