package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// loopback is the path of a queue pair to itself. It crosses no socket: the queue pair
// receives each packet right after it has sent it, while the data are still in the program's
// memory, so that they are copied once. Checks, order, completions and waiting for receives
// are the transport's, as for any other peer.
type loopback struct {
	onlySockets
	endpoint *endpoint // of the queue pair's address
	packet   *wire.Packet
	pieces   [][]byte
	size     int
}

const (
	// loopbackCost is the least that a packet takes off the allowance, in bytes.
	loopbackCost = 4 << 10
)

// isLoopback reports whether a connection to destQPN connects q to itself, and nothing needs
// its packets on a socket. Faults and captures do.
func (q *queuePair) isLoopback(out *udpOutput, destQPN uint32) bool {
	e := out.endpoint
	return q.init.Type == verbs.RC && destQPN == q.num && out.peer == e.socket.Addr() &&
		!faults.Any(q.pd.device.mu.faults.Of(out.peer.Addr())) && q.pd.device.capture == nil
}

func (l *loopback) attach(t *transport.QP) {
	t.SetWindow(l.endpoint.window)
	t.SetLargestPacket(transport.MaxLargePacket)
	t.SetLossless()
}

func (*loopback) detach() {}

// Send implements transport.Output. It keeps the packet for send: a queue pair cannot receive
// in the midst of sending.
func (l *loopback) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	l.packet, l.pieces, l.size = p, pieces, n
	return true
}

func (l *loopback) send(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	for a.remains() {
		l.packet, l.size = nil, 0
		more := t.Transmit(l, now, 1)
		if l.packet != nil {
			if !t.ReceivePieces(l.packet, t.PathMTU(), l.pieces, nil, now) {
				t.Unreadable(l.packet)
			}
		} else if !more {
			return a, false
		}
		a.bytes -= max(l.size, loopbackCost)
	}
	return a, true
}

func (l *loopback) leadsTo(*endpoint, netip.AddrPort) bool { return false }

func (*loopback) kind() verbs.Path { return verbs.PathLoopback }
