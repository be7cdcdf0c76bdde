package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// localPath is the path of a reliable connection that may lead to another device of this
// machine. Its packets go through shared memory while there is a channel to that device,
// and else by UDP, by which they may come at any time. What is under way when it changes
// may be overtaken or lost, and is repeated by the transport as on any path.
type localPath struct {
	udpPath
	queuePair *queuePair
	peerShard int
	peer      *localPeer // while it is attached
	shared    bool       // its packets leave through the channel
	waiting   bool       // for room in the channel
	size      int        // bytes of payload sent since transmit was called

	mark  uint32         // of the channel, when the path joined it
	heard bool           // a packet has come through it
	left  *local.Channel // that was cut off, if it led to the process of the peer's queue pair
}

// maxBehind is more packets than can be under way through a channel, whose acknowledgements
// may be lost with it: the peer repeats them by UDP, from a port that has to be learned.
const maxBehind = 1 << 16

const (
	// localCost is what the smallest packet takes off the allowance, in bytes.
	localCost = 4 << 10
	// localWindow is how much of a connection may be under way through shared memory, in bytes.
	// Nothing is lost there, so it is for the peer to find the next requests while
	// acknowledgements are under way; others wait behind them in the ring.
	localWindow = 4 << 20
	// A turn of a queue pair is turnPackets or turnBytes. Then the peer is shown what was sent,
	// so that it works on that while more is made, and other queue pairs have their turn.
	turnPackets = 32
	turnBytes   = 256 << 10
)

func (p *localPath) attach(t *transport.QP) {
	p.peer = p.endpoint.shard.local.join(p.endpoint, local.Address{Device: p.udpPath.peer, Shard: p.peerShard})
	p.udpPath.attach(t)
	if p.peer.agreed {
		p.joined()
	}
}

func (p *localPath) detach() {
	p.revoke(nil)
	if p.shared {
		p.endpoint.receivers++
		p.peer.endWait(p)
	}
	p.udpPath.detach()
	p.endpoint.shard.local.leave(p.peer)
}

// revoke has the peer take no more payload from mem, or from any memory if it is nil: it is the
// program's again.
func (p *localPath) revoke(mem []byte) {
	switch c := p.peer.channel; {
	case c == nil:
	case mem == nil:
		c.Revoke(p.queuePair.num)
	default:
		c.RevokeMemory(mem)
	}
}

// joined has packets leave through the channel.
func (p *localPath) joined() {
	p.shared, p.mark = true, p.peer.channel.Mark()
	p.endpoint.receivers--
	p.queuePair.ack.from = nil
	p.queuePair.transport.SetLargestPacket(local.MaxInline)
	if !p.peer.isLoop() { // else one turns to the next packets when it has handled these
		p.queuePair.transport.SetWindow(localWindow)
	}
	p.queuePair.transport.SetCongestionControl(false)
	p.endpoint.shard.activate(p.queuePair)
}

// parted has the path go on by UDP: the channel has ended.
func (p *localPath) parted(c *local.Channel) {
	if p.heard || p.shared && c.OutlivedBy(p.mark) {
		p.left = c
	}
	if p.heard {
		p.queuePair.source.AcceptRepetitions(maxBehind)
	}
	p.heard = false
	if !p.shared {
		return
	}
	p.shared = false
	p.endpoint.receivers++
	p.waiting = false
	p.queuePair.transport.SetLargestPacket(0)
	p.queuePair.transport.SetWindow(p.endpoint.window)
	p.queuePair.transport.SetCongestionControl(p.controlled())
	p.queuePair.ack.from = p.queuePair.newDelayedAck().from
	p.endpoint.shard.activate(p.queuePair)
}

func (p *localPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	if !p.shared {
		return p.endpoint.shard.transmitPackets(t, &p.udpPath, now, a)
	}
	s, c := p.endpoint.shard, p.peer.channel
	s.local.sends(p.peer)
	first := s.counters.SentPackets
	p.size = 0
	for a.any() {
		sent, size := int(s.counters.SentPackets-first), p.size
		if sent >= turnPackets || size >= turnBytes {
			c.Flush()
			return a, true
		}
		budget, err := c.Room(min(turnPackets-sent, a.bytes/localCost+1))
		if err != nil {
			p.peer.end(err)
			return a, true
		}
		if budget == 0 {
			// Who has sent something waits behind those who have not.
			return a, sent > 0 || !p.peer.wait(p)
		}
		more := t.Transmit(p, now, budget)
		a.bytes -= p.size - size + (int(s.counters.SentPackets-first)-sent)*localCost
		if !more {
			return a, false
		}
	}
	return a, true
}

func (p *localPath) kind() verbs.Path {
	switch {
	case !p.shared:
		return verbs.PathNetwork
	case p.peer.isLoop():
		return verbs.PathLoopback
	}
	return verbs.PathSharedMemory
}

// Send implements transport.Output.
func (p *localPath) Send(packet *wire.Packet, pieces [][]byte, n int) bool {
	s := p.endpoint.shard
	var refs []local.Reference
	if n >= local.MinReference {
		refs = p.peer.references(pieces)
	}
	p.size += n
	if !p.peer.channel.Send(packet, pieces, n, refs, p.queuePair.num) {
		return false
	}
	s.counters.SentPackets++
	s.local.sent++
	return true
}
