package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A queue pair that is connected to itself crosses no socket: each packet that it
// sends it receives on the spot, with the data still where the program has them, so
// that they are copied once. Everything else (checks, order, completions, waiting
// for receives) is done by the same code as for a peer elsewhere.

const (
	// selfTurn bounds what all such queue pairs copy between two looks at the
	// sockets, in bytes, and so how long the device is locked.
	selfTurn = 1 << 20
	// selfPacket is what a packet counts for in it at least.
	selfPacket = 4 << 10
)

// loop is where a queue pair that is its own peer sends to.
type loop struct {
	packet *wire.Packet // nil: nothing was sent
	pieces [][]byte
}

// Send implements transport.Output.
func (l *loop) Send(p *wire.Packet, pieces [][]byte, _ int) { l.packet, l.pieces = p, pieces }

// SendTo implements transport.Output. A connection sends no datagrams.
func (l *loop) SendTo(verbs.AH, *wire.Packet, [][]byte, int) {}

// leadsBack reports whether a connection to that queue pair is one of q to itself
// whose packets need not be seen: faults and captures are for those on a socket.
func (q *queuePair) leadsBack(way *path, attr *verbs.QPAttr) bool {
	e := way.endpoint
	return q.init.Type == verbs.RC && attr.DestQPN == q.num &&
		attr.Address.DGID == verbs.GIDFromAddr(e.socket.Addr().Addr()) && way.peer.Port() == e.socket.Addr().Port() &&
		e.faults == nil && q.pd.device.capture == nil
}

// serveSelf gives a queue pair that is its own peer its turn, and reports whether
// it wants another. left is what may still be copied in this one.
func (d *Device) serveSelf(q *queuePair, now time.Duration, left *int) bool {
	for *left > 0 {
		d.loop.packet = nil
		more := q.transport.Transmit(&d.loop, now, 1)
		moved := 0
		switch {
		case d.loop.packet != nil:
			moved = q.transport.ReceiveSelf(d.loop.packet, d.loop.pieces, now)
		case !more:
			return false
		}
		*left -= max(moved, selfPacket)
	}
	return true
}
