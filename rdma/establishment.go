package rdma

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// establishment is how the two ends of a connection find out that both are up, and
// that one has left. It belongs to one connection, which calls it on the engine's
// goroutine; it calls ready or fail of the connection, and sets its deadline.
type establishment interface {
	// begin is called once the queue pair is up and the connection is Connecting.
	begin()
	// due is called at the connection's deadline while it is Connecting.
	due(now time.Time)
	// signaled is called when the peer may have written to the connection's word.
	signaled()
	// sent is called when the ready signal that it posted has completed, while
	// Connecting.
	sent(status verbs.Status, vendor uint32)
	// peerMayBeReady reports, while Connecting, whether the peer may be Ready already,
	// so that it has to be notified when this end closes.
	peerMayBeReady() bool
	// sayGoodbye posts the goodbye, which notifies the peer that this end closes.
	sayGoodbye()
	// goodbyeArrived reports whether the peer's goodbye is here.
	goodbyeArrived() bool
	// release is called when the connection is destroyed.
	release()
}
