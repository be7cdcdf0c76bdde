package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// path takes the packets of one queue pair to its peer and owns their output. The transition
// to RTR chooses it; nothing else knows which kind it is. All methods are called with the lock
// of the queue pair's shard held.
//
// endpoint.handle finds the queue pair of packets that come from a socket. A path that
// receives packets in another way calls the transport's Receive or ReceivePieces itself, and
// activates the queue pair.
type path interface {
	// attach starts the use of the path: it sets the path's limits in the queue pair, and
	// counts the queue pair at the endpoints that work for it.
	attach(t *transport.QP)
	// detach ends the use.
	detach()
	// send sends packets of the queue pair, within the allowance. It returns the rest of the
	// allowance, and whether more packets could leave at once.
	send(t *transport.QP, now time.Duration, a allowance) (left allowance, more bool)
	// kind returns the kind of the path.
	kind() verbs.Path
	// leadsTo reports whether packets go from that endpoint to that UDP address.
	leadsTo(e *endpoint, peer netip.AddrPort) bool
	// trains returns the endpoint that can send an acknowledgement and a reply in one train of
	// packets. Nil: there are no such trains.
	trains() *endpoint
	// channel returns the part of the path that goes through shared memory; nil: none does.
	channel() *local.Path
	// revoke stops the peer from taking more payload from mem, or from any memory if mem is nil.
	revoke(mem []byte)
	// peerBehind reports whether the peer has not taken the latest packets yet, on a path that
	// loses none.
	peerBehind() bool
}

// onlySockets is embedded in paths that send no trains and do not use shared memory.
type onlySockets struct{}

func (onlySockets) trains() *endpoint    { return nil }
func (onlySockets) channel() *local.Path { return nil }
func (onlySockets) revoke([]byte)        {}
func (onlySockets) peerBehind() bool     { return false }

// allowance is what all queue pairs of a shard together may still send before the shard checks
// its sockets again. It bounds how long the shard is locked.
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
	// sendBudget is how many packets one queue pair sends before the next one's turn.
	sendBudget = 64
)

func (a allowance) remains() bool { return a.packets > 0 && a.bytes > 0 }

// choosePath returns the path for a transition to RTR, and the source that packets may come
// from.
func (q *queuePair) choosePath(attr *verbs.QPAttr) (path, admission.Source, error) {
	d := q.pd.device
	if q.init.Type == verbs.UD {
		return &datagramPath{device: d}, d.admission.Datagrams(q.num), nil
	}
	to := attr.Address
	if q.meansOwn(attr.DestQPN) {
		to.UDPPort = d.ownPort(to)
	} else if to.UDPPort == 0 || to.UDPPort == wire.UDPPort {
		to.UDPPort = d.neighbourPort(to.DGID.Addr(), attr.DestQPN)
	}
	out, err := d.outputTo(to)
	if err != nil {
		return nil, admission.Source{}, err
	}
	out.endpoint = q.shard.endpoints[out.endpoint.index]
	if q.isLoopback(&out, attr.DestQPN) {
		return &loopback{endpoint: out.endpoint}, admission.Source{}, nil
	}
	udp, port := udpPath{udpOutput: out}, d.sourcePort(out.peer, attr.Address.SourceUDPPort)
	if !transport.Reliable(q.init.Type) {
		return &udp, out.endpoint.entry.Connection(out.peer.Addr(), port, nil), nil
	}
	from := out.endpoint.entry.Connection(out.peer.Addr(), port, q.transport)
	if !q.shard.mu.local.On() {
		return &udp, from, nil
	}
	return &localPath{udpPath: udp, queuePair: q, peerShard: int(attr.DestQPN & shardBits)}, from, nil
}

// meansOwn reports whether a peer's queue pair number seems to be that of a queue pair of this
// device. One that is connected to another queue pair is not meant.
func (q *queuePair) meansOwn(number uint32) bool {
	peer := q.pd.device.mu.queuePairs[number]
	return peer != nil && transport.Pairs(peer.init.Type, q.init.Type) && (peer.path == nil || peer.transport.Attr().DestQPN == q.num)
}

// ownPort returns the UDP port of an address for queue pairs of this device: if no port is given,
// and the GID is the device's, its own port. Port 4791 there may be another process's.
func (d *Device) ownPort(a verbs.AddressAttr) uint16 {
	if a.UDPPort != 0 {
		return a.UDPPort
	}
	for _, e := range d.endpoints {
		if own := e.socket.Addr(); own.Addr() == a.DGID.Addr() {
			return own.Port()
		}
	}
	return 0
}

// sourcePort returns the UDP source port of a peer's packets; 0: unknown. Only software
// devices listen at another port than 4791, and they send from that port.
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

// setPath makes the queue pair send by path p and accept packets from that source from now on.
// If p is nil, it does neither.
func (q *queuePair) setPath(p path, from admission.Source) {
	s := q.shard
	if q.path != nil {
		q.path.detach()
		s.dequeue(q)
		s.mu.timers.Remove(&q.timer)
	}
	q.source.Close()
	q.path, q.source = p, from
	q.source.Open()
	q.ack = delayedAck{threshold: minThreshold}
	if p != nil {
		q.ack.endpoint = p.trains()
		p.attach(q.transport)
	}
}

// Counters implements optional.CountersQP.
func (q *queuePair) Counters() verbs.QPCounters {
	s := q.lock()
	defer s.mu.Unlock()
	c := q.transport.OwnCounters(s.device.now())
	if q.path != nil {
		c.Path = q.path.kind()
	}
	return c
}
