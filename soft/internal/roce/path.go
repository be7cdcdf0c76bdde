package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// path takes the packets of one queue pair to its peer and owns their output. It
// is chosen at the transition to RTR; nothing else knows which kind it is. All
// methods are called with the lock of the queue pair's shard held.
//
// Packets that come by a socket find their queue pair by endpoint.handle, which
// asks the path whether they come from the peer. A path with another way for them
// hands them to the transport's Receive or ReceivePieces itself, and activates the
// queue pair.
type path interface {
	// attach takes the path into use: it sets what the path can carry in the queue
	// pair, and counts the queue pair at the endpoints that work for it.
	attach(t *transport.QP)
	// detach ends the use.
	detach()
	// transmit sends what the queue pair has to send, as far as the allowance
	// goes. It returns what is left of the allowance, and whether more could
	// leave at once.
	transmit(t *transport.QP, now time.Duration, a allowance) (left allowance, more bool)
	// flowFrom returns the flow of packets that come to an endpoint from that
	// address, or nil if the queue pair takes none from there.
	flowFrom(e *endpoint, source netip.AddrPort) *wire.Flow
	// kind is what it is.
	kind() verbs.Path
	// endsAt reports whether packets go from that endpoint to that UDP address.
	endsAt(e *endpoint, peer netip.AddrPort) bool
}

// allowance is what all queue pairs of a shard together may still send before it
// looks at its sockets again. It bounds how long the shard is locked.
type allowance struct {
	packets int // to sockets
	bytes   int // from memory to memory; to sockets, each packet counts as the path MTU
}

const (
	// roundPackets and roundBytes are the allowance of one round.
	roundPackets = 8 * sendBudget
	roundBytes   = 1 << 20
	// srdRoundPackets is the same for SRD, whose packets have up to 4,096 bytes.
	srdRoundPackets = roundBytes / 4096
	// sendBudget is how many packets one queue pair sends before the next one
	// does.
	sendBudget = 64
)

func (a allowance) any() bool { return a.packets > 0 && a.bytes > 0 }

// choosePath chooses the path for a transition to RTR.
func (q *queuePair) choosePath(attr *verbs.QPAttr) (path, error) {
	d := q.pd.device
	if q.init.Type == verbs.UD {
		return &datagramPath{device: d}, nil
	}
	out, err := d.outputTo(attr.Address)
	if err != nil {
		return nil, err
	}
	out.endpoint = q.shard.Load().endpoints[out.endpoint.index]
	if q.isOwnPeer(&out, attr.DestQPN) {
		return &loopback{endpoint: out.endpoint}, nil
	}
	udp := newUDPPath(out, d.sourcePort(out.peer, attr.Address.SourceUDPPort))
	if q.init.Type == verbs.RC {
		return q.shard.Load().local.pathTo(q, udp, attr.DestQPN), nil
	}
	return &udp, nil
}

// sourcePort is the port that a peer's packets come from; 0: it is not known. Only software
// devices have another port than 4791, and they send from it.
func (d *Device) sourcePort(peer netip.AddrPort, named uint16) uint16 {
	if named != 0 {
		return named
	}
	if peer.Port() != wire.UDPPort {
		return peer.Port()
	}
	for _, e := range d.endpoints {
		if e.socket.Addr() == peer {
			return e.socket.Source().Port()
		}
	}
	return 0
}

// setPath has the queue pair send and receive by that path from now on; nil: not
// at all.
func (q *queuePair) setPath(p path) {
	s := q.shard.Load()
	if q.path != nil {
		q.path.detach()
		s.unlist(q)
		s.timers.remove(q)
	}
	q.path, q.learning, q.ack = p, nil, newDelayedAck(p)
	if p != nil {
		p.attach(q.transport)
	}
	// An unreliable connection learns no port: its peer may be at any sequence number, so that
	// any packet would be as good as another.
	if u := networkPath(p); u != nil && !u.held && q.init.Type == verbs.RC {
		q.learning = u
	}
}

// networkPath is the part of a path that goes by UDP to one peer; nil: it has none.
func networkPath(p path) *udpPath {
	switch p := p.(type) {
	case *udpPath:
		return p
	case *localPath:
		return &p.udpPath
	}
	return nil
}

// flowFrom returns the flow of packets that come to an endpoint from that address, or nil if
// the queue pair takes none from there.
func (q *queuePair) flowFrom(e *endpoint, source netip.AddrPort, now time.Duration) *wire.Flow {
	if q.path == nil {
		return nil
	}
	flow := q.path.flowFrom(e, source)
	if flow == nil && q.learnAgain(e, source.Addr(), now) {
		flow = q.path.flowFrom(e, source)
	}
	return flow
}

// takesNotifications reports whether congestion notifications from any port of an address are
// the peer's: nobody has named its port.
func (q *queuePair) takesNotifications(e *endpoint, source netip.Addr) bool {
	u := networkPath(q.path)
	return u != nil && (!u.held || u.learned) && u.isPeer(e, source)
}

// relearnTime is for how long a peer is silent when packets from another port may be its own: a
// driver can choose another for a queue pair that it brings up again.
const relearnTime = 10 * time.Second

// learnAgain has the queue pair learn the port of its peer again, if it is time, and reports
// whether it does.
func (q *queuePair) learnAgain(e *endpoint, source netip.Addr, now time.Duration) bool {
	u := networkPath(q.path)
	if u == nil || !u.learned || now-q.heardAt < relearnTime || !u.isPeer(e, source) {
		return false
	}
	u.held, u.learned, q.learning = false, false, u
	return true
}

// Path implements verbs.PathQP.
func (q *queuePair) Path() verbs.Path {
	s := q.lock()
	defer s.mu.Unlock()
	if q.path == nil {
		return verbs.PathUnknown
	}
	return q.path.kind()
}
