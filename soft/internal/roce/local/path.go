package local

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Path is the part of a connection's path that goes through shared memory. Packets leave
// through a channel while there is one to the peer's device, and otherwise by UDP; they may
// arrive by UDP at any time. Packets in flight when that changes may be overtaken or lost; the
// transport repeats them, as on any path.
type Path struct {
	peers     *Peers
	peer      *Peer
	queuePair *transport.QP
	user      User
	shared    bool // its packets leave through the channel
	waiting   bool // for room in the channel
	size      int  // bytes of payload sent since Transmit was called

	sent     uint64   // the channel's position after the last packet of this path
	mark     uint32   // the channel's mark when the path joined it
	received bool     // a packet has arrived through the channel
	cutOff   *Channel // the channel that was cut off, if it led to the process of the peer's queue pair
}

// User is the queue pair of a path.
type User interface {
	// ChannelUp is called when packets start to leave through the channel.
	ChannelUp()
	// ChannelDown is called when the channel has ended. shared: packets left through it.
	// received: packets arrived through it.
	ChannelDown(shared, heard bool)
	// Activate makes the queue pair send soon.
	Activate()
	// Respond is called after each packet: it makes the queue pair send its response soon, or
	// together with the program's next request.
	Respond(now time.Duration)
}

const (
	// packetCost is the least that a packet takes off the allowance, in bytes.
	packetCost = 4 << 10
	// window is how many bytes of a connection may be in flight through shared memory. Nothing
	// is lost there, so the window only has to keep requests ready for the peer while
	// acknowledgements are in flight. It is bounded because other connections wait behind
	// these packets in the ring.
	window = 4 << 20
	// A queue pair sends up to turnPackets or turnBytes at a time. Then the packets are
	// published, so that the peer can start on them, and the next queue pair sends.
	turnPackets = 32
	turnBytes   = 256 << 10
)

// Begin starts the use of the path.
func (p *Path) Begin() {
	if p.peer.established {
		p.joinChannel()
	}
}

// Close ends the use of the path, and reports whether packets left through the channel.
func (p *Path) Close() (shared bool) {
	p.Revoke(nil)
	shared = p.shared
	if shared {
		p.peer.endWait(p)
	}
	p.peers.removePath(p)
	return shared
}

// Revoke stops the peer from taking more payload from mem, or from any memory if mem is nil:
// the program may reuse it.
func (p *Path) Revoke(mem []byte) {
	switch c := p.peer.channel; {
	case c == nil:
	case mem == nil:
		c.Revoke(p.queuePair.Num())
	default:
		c.RevokeMemory(mem)
	}
}

// joinChannel makes packets leave through the channel.
func (p *Path) joinChannel() {
	p.shared, p.sent, p.mark = true, 0, p.peer.channel.Mark()
	p.queuePair.SetLargestPacket(MaxInline)
	if !p.peer.isLoop() { // a loop sends the next packets only after it has handled these
		p.queuePair.SetWindow(window)
	}
	p.queuePair.SetCongestionControl(false)
	p.user.ChannelUp()
	p.user.Activate()
}

// leaveChannel makes packets go by UDP after the channel has ended.
func (p *Path) leaveChannel(c *Channel) {
	if p.received || p.shared && c.AliveAfter(p.mark) {
		p.cutOff = c
	}
	shared, heard := p.shared, p.received
	p.shared, p.received = false, false
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

// Peer returns the device at the other end of the path.
func (p *Path) Peer() *Peer { return p.peer }

// WaitsForRoom reports whether packets of the path wait for room in the channel.
func (p *Path) WaitsForRoom() bool { return p.waiting }

// PeerBehind reports whether the peer has not taken the last packet from the channel yet, or
// leaves no room in it. Its process is then stopped, or waits for a processor.
func (p *Path) PeerBehind() bool {
	return p.shared && (p.waiting || !p.peer.channel.Taken(p.sent))
}

// Transmit sends packets of the queue pair through the channel, up to that many bytes. It
// returns the rest of the bytes, and whether more packets could leave at once.
func (p *Path) Transmit(now time.Duration, bytes int) (left int, more bool) {
	sentPackets, c := &p.peers.cfg.Packets.SentPackets, p.peer.channel
	p.peers.noteSent(p.peer)
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
	if !p.peer.channel.Send(packet, p.queuePair.PathMTU(), pieces, n, refs, p.queuePair.Num()) {
		return false
	}
	p.sent = p.peer.channel.Sent()
	p.peers.cfg.Packets.SentPackets++
	p.peers.counters.Sent++
	return true
}
