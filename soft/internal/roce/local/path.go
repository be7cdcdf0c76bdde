package local

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Path is the part of a connection's path that goes through shared memory. Packets leave through a
// channel while there is one to the peer's device, and else by UDP, by which they may come at any
// time. What is under way when that changes may be overtaken or lost, and is repeated by the
// transport as on any path.
type Path struct {
	peers     *Peers
	peer      *Peer
	queuePair *transport.QP
	user      User
	shared    bool // its packets leave through the channel
	waiting   bool // for room in the channel
	size      int  // bytes of payload sent since Transmit was called

	mark  uint32   // of the channel, when the path joined it
	heard bool     // a packet has come through it
	left  *Channel // that was cut off, if it led to the process of the peer's queue pair
}

// User is the queue pair that a path is of.
type User interface {
	// ChannelUp is called when packets leave through the channel from now on.
	ChannelUp()
	// ChannelDown is called when the channel has ended. It had carried packets, if shared is true, and
	// brought some, if heard is.
	ChannelDown(shared, heard bool)
	// Activate makes the queue pair send soon.
	Activate()
}

const (
	// packetCost is what the smallest packet takes off the allowance, in bytes.
	packetCost = 4 << 10
	// window is how much of a connection may be under way through shared memory, in bytes. Nothing
	// is lost there, so it only lets the peer find the next requests while acknowledgements are
	// under way; other connections wait behind them in the ring.
	window = 4 << 20
	// A turn of a queue pair is turnPackets or turnBytes. Then the peer is shown what was sent,
	// so that it works on that while more is made, and other queue pairs have their turn.
	turnPackets = 32
	turnBytes   = 256 << 10
)

// Begin takes the path into use.
func (p *Path) Begin() {
	if p.peer.agreed {
		p.join()
	}
}

// Leave ends the use of the path, and reports whether packets left through the channel.
func (p *Path) Leave() (shared bool) {
	p.Revoke(nil)
	shared = p.shared
	if shared {
		p.peer.endWait(p)
	}
	p.peers.leave(p)
	return shared
}

// Revoke makes the peer take no more payload from mem, or from any memory if it is nil: it is the
// program's again.
func (p *Path) Revoke(mem []byte) {
	switch c := p.peer.channel; {
	case c == nil:
	case mem == nil:
		c.Revoke(p.queuePair.Num())
	default:
		c.RevokeMemory(mem)
	}
}

// join makes packets leave through the channel.
func (p *Path) join() {
	p.shared, p.mark = true, p.peer.channel.Mark()
	p.queuePair.SetLargestPacket(MaxInline)
	if !p.peer.isLoop() { // else one turns to the next packets when it has handled these
		p.queuePair.SetWindow(window)
	}
	p.queuePair.SetCongestionControl(false)
	p.user.ChannelUp()
	p.user.Activate()
}

// part makes packets go by UDP: the channel has ended.
func (p *Path) part(c *Channel) {
	if p.heard || p.shared && c.OutlivedBy(p.mark) {
		p.left = c
	}
	shared, heard := p.shared, p.heard
	p.shared, p.heard = false, false
	if shared {
		p.waiting = false
		p.queuePair.SetLargestPacket(0)
	}
	p.user.ChannelDown(shared, heard)
	if shared {
		p.user.Activate()
	}
}

// Shared reports whether packets leave through the channel.
func (p *Path) Shared() bool { return p.shared }

// Loop reports whether the peer is the endpoint itself.
func (p *Path) Loop() bool { return p.peer.isLoop() }

// Peer is the device that the path leads to.
func (p *Path) Peer() *Peer { return p.peer }

// Proven reports whether the channel is known to lead to the process of the peer's queue pair.
func (p *Path) Proven() bool { return p.shared && p.peer.channel.OutlivedBy(p.mark) }

// Transmit sends what the queue pair has to send through the channel, as far as so many bytes go. It
// returns what is left of them, and whether more could leave at once.
func (p *Path) Transmit(now time.Duration, bytes int) (left int, more bool) {
	sentPackets, c := &p.peers.cfg.Packets.SentPackets, p.peer.channel
	p.peers.sends(p.peer)
	first := *sentPackets
	p.size = 0
	for bytes > 0 {
		sent, size := int(*sentPackets-first), p.size
		if sent >= turnPackets || size >= turnBytes {
			c.Flush()
			return bytes, true
		}
		budget, err := c.Room(min(turnPackets-sent, bytes/packetCost+1))
		if err != nil {
			p.peer.End(err)
			return bytes, true
		}
		if budget == 0 {
			// Paths that have sent go to the back of the queue.
			return bytes, sent > 0 || !p.peer.wait(p)
		}
		more := p.queuePair.Transmit(p, now, budget)
		bytes -= p.size - size + (int(*sentPackets-first)-sent)*packetCost
		if !more {
			return bytes, false
		}
	}
	return bytes, true
}

// Send implements transport.Output.
func (p *Path) Send(packet *wire.Packet, pieces [][]byte, n int) bool {
	var refs []Reference
	if n >= MinReference {
		refs = p.peer.References(pieces)
	}
	p.size += n
	if !p.peer.channel.Send(packet, pieces, n, refs, p.queuePair.Num()) {
		return false
	}
	p.peers.cfg.Packets.SentPackets++
	p.peers.counters.Sent++
	return true
}
