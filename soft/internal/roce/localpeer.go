package roce

import (
	"errors"
	"io"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// localPeer is a device that may be one of this machine, or this one, as an endpoint reaches it.
type localPeer struct {
	endpoint *endpoint
	ends     local.Ends
	users    int            // paths to it
	meetings int            // channels that are being made
	pausing  bool           // before it is dialled again
	channel  *local.Channel // nil: there is none
	agreed   bool           // the peer takes what comes through the channel
	waiting  []*localPath   // for room in it

	place, quiet int  // in the poll list
	unflushed    bool // something was sent to it

	refs [local.MaxReferences]local.Reference
}

// receivePackets and receiveBytes are how much is taken from one channel before the next, and
// before this end sends what that brings about, on which the peer can work meanwhile.
const (
	receivePackets = 64
	receiveBytes   = 256 << 10
)

// receive handles the packets that have come and reports whether there were any.
func (p *localPeer) receive(now time.Duration) bool { return p.take(now) > 0 }

// take handles packets that have come, and returns how many, and one more if the channel had to be
// ended.
func (p *localPeer) take(now time.Duration) int {
	c := p.channel
	if len(p.waiting) > 0 {
		if p.resume(); p.channel != c {
			return 1
		}
	}
	n, size := 0, 0
	for ; n < receivePackets && size < receiveBytes; n++ {
		packet, err := c.Receive()
		if err != nil {
			p.end(err)
			return n + 1
		}
		if packet == nil {
			break
		}
		for _, piece := range packet.Pieces {
			size += len(piece)
		}
		p.handle(packet, now)
	}
	c.Release() // of what has been passed over, too
	return n
}

func (p *localPeer) handle(packet *local.Packet, now time.Duration) {
	path := p.endpoint.handleShared(p.ends.Peer.Device, &packet.Packet, packet.Pieces, packet.Intact, now)
	if path != nil && path.peer == p {
		path.heard = true
	}
	p.agree() // who sends through it has taken it into use
}

// handleShared handles a packet that has come through shared memory from that device, by whichever
// of its shards. It returns the path that it belongs to, or nil: there is none in this shard.
func (e *endpoint) handleShared(from netip.AddrPort, packet *wire.Packet, pieces [][]byte, intact func() bool, now time.Duration) *localPath {
	s, q := e.shard, e.find(packet.DestQP)
	if q == nil || q.shard != s {
		s.drops.wrongPeer++
		return nil
	}
	path, ok := q.path.(*localPath)
	if !ok || path.endpoint != e || path.udpPath.peer != from || !admission.DefaultPartition(packet.PKey) {
		s.drops.wrongPeer++
		return nil
	}
	s.counters.ReceivedPackets++
	s.local.received++
	q.transport.ReceivePieces(packet, pieces, intact, now)
	s.activate(q)
	return path
}

// wait has a path send again when there is room in the channel. It reports false if there is
// room now.
func (p *localPeer) wait(path *localPath) bool {
	full, err := p.channel.AwaitRoom()
	if err != nil {
		p.end(err)
		return false
	}
	if full && !path.waiting {
		path.waiting = true
		p.waiting = append(p.waiting, path)
	}
	return full
}

// endWait takes back wait.
func (p *localPeer) endWait(path *localPath) {
	if !path.waiting {
		return
	}
	path.waiting = false
	p.waiting = slices.DeleteFunc(p.waiting, func(w *localPath) bool { return w == path })
}

// resume has the paths send that wait for room, if there is any.
func (p *localPeer) resume() {
	room, err := p.channel.Room(1)
	if err != nil {
		p.end(err)
		return
	}
	if room == 0 {
		return
	}
	for _, path := range p.waiting {
		path.waiting = false
		p.endpoint.shard.activate(path.queuePair)
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}

// references says where the payload of a packet lies in memory that the peer has been shown.
// It returns nil if it does not, or not yet.
func (p *localPeer) references(pieces [][]byte) []local.Reference {
	refs := p.refs[:0]
	for _, piece := range pieces {
		m, off := p.endpoint.device.memories.find(piece)
		if m == nil || len(refs) == cap(refs) {
			return nil
		}
		number, ok := p.channel.Shown(m)
		if !ok {
			return nil
		}
		refs = append(refs, local.Reference{Memory: number, Length: uint32(len(piece)), Offset: off})
	}
	return refs
}

// isLoop reports whether it is the endpoint itself.
func (p *localPeer) isLoop() bool { return p.ends.Local == p.ends.Peer }

// begin takes a channel into use.
func (p *localPeer) begin(c *local.Channel) {
	s := p.endpoint.shard
	p.channel = c
	s.local.polled.add(p)
	if p.isLoop() {
		p.agree()
		c.Await()
		return
	}
	c.SetBudget(&s.local.budget)
	if !c.Await() {
		s.local.woken()
	}
	begun := c.Mark()
	s.local.channels++
	s.local.serving.Go(func() {
		if p.serve(c, begun) {
			s.local.cutOff(c)
		}
		c.CloseConnection()
		s.mu.Lock()
		s.local.channels--
		s.mu.Unlock()
	})
}

// agree has packets leave through the channel, since the peer has taken it into use too. Before, they
// could lie there while later messages of the connection manager go by UDP: a peer that ends the
// connection would be heard before its last acknowledgement.
func (p *localPeer) agree() {
	if p.agreed || p.channel == nil {
		return
	}
	p.agreed = true
	p.each((*localPath).joined)
	p.endpoint.device.log.Debug().Stringer("peer", p.ends.Peer).Msg("packets go through shared memory")
}

// serve takes the messages of a channel until it ends. It reports whether cutOff is to be called.
// A peer that answers what it was asked when the channel began has begun too, as has one that sends.
func (p *localPeer) serve(c *local.Channel, begun uint32) bool {
	s := p.endpoint.shard
	agreed := false
	err := c.Serve(&s.mu, func() {
		if !agreed {
			s.mu.Lock()
			if agreed = c.OutlivedBy(begun); agreed && p.channel == c {
				p.agree()
			}
			s.mu.Unlock()
		}
		s.local.woken()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.channel == c {
		p.drain()
	}
	doubtful := c.Stuck() // a process that is killed in the midst of a copy does not end it either
	if p.channel == c {
		p.end(err)
		doubtful = errors.Is(err, local.ErrCutOff)
	}
	if !doubtful || s.local.doubts == maxLocalPeers {
		return false
	}
	s.local.doubts++
	return true
}

// maxDrain bounds how many packets are taken from a channel that has ended: no ring holds more.
const maxDrain = 1 << 14

// drain handles what a peer has sent before it ended: a program may well answer and exit.
func (p *localPeer) drain() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	d := p.endpoint.device
	for n := 0; n < maxDrain && p.channel != nil; {
		taken := p.take(d.now())
		if taken == 0 {
			return
		}
		n += taken
	}
}

// end ends the channel, for that reason: its paths go on by UDP.
func (p *localPeer) end(err error) {
	s, d, c := p.endpoint.shard, p.endpoint.device, p.channel
	p.close()
	p.each(func(path *localPath) { path.parted(c) })
	switch {
	case errors.Is(err, local.ErrStandsStill):
		d.log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP for a while")
		if s.local.on && p.users > 0 && !p.pausing {
			p.pausing = true
			s.local.dialling.Go(func() { s.local.dialAgain(p, minRedialPause) })
		}
	case errors.Is(err, local.ErrDisorder):
		s.local.disorder++
		d.log.Warn().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP: the other process has broken the shared memory")
	case errors.Is(err, io.EOF):
		// The peer has died, or has closed its device. That says nothing of who is about to
		// connect from the same address, and may be another process already.
		now := d.now()
		p.each(func(path *localPath) {
			path.queuePair.transport.PeerUnreachable(now)
			s.activate(path.queuePair)
		})
		fallthrough
	default:
		d.log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP again")
	}
	s.local.forgetUnused(p)
	if s.sendsMore() {
		s.wake()
	}
}

// close closes the channel.
func (p *localPeer) close() {
	p.endpoint.shard.local.polled.remove(p)
	p.channel.Close()
	p.channel, p.agreed = nil, false
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}

// each calls f for the paths to the peer.
func (p *localPeer) each(f func(*localPath)) {
	for _, q := range p.endpoint.device.queuePairs {
		if path, ok := q.path.(*localPath); ok && path.peer == p {
			f(path)
		}
	}
}
