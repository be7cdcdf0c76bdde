package local

import (
	"errors"
	"io"
	"runtime/debug"
	"slices"
	"time"
)

// Peer is a device that may be one of this machine, or this one, as an endpoint reaches it.
type Peer struct {
	peers    *Peers
	endpoint Endpoint
	ends     Ends
	users    int // paths to it
	paths    map[*Path]struct{}
	meetings int      // channels that are being made
	pausing  bool     // before it is dialled again
	channel  *Channel // nil: there is none
	agreed   bool     // the peer takes what comes through the channel
	waiting  []*Path  // for room in it

	place, quiet int  // in the poll list
	unflushed    bool // something was sent to it

	refs [MaxReferences]Reference
}

// receivePackets and receiveBytes are how much is taken from one channel before the next, and
// before this end sends what that brings about, on which the peer can work meanwhile.
const (
	receivePackets = 64
	receiveBytes   = 256 << 10
)

// receive handles the packets that have come and reports whether there were any.
func (p *Peer) receive(now time.Duration) bool { return p.take(now) > 0 }

// take handles packets that have come, and returns how many, and one more if the channel had to be
// ended.
func (p *Peer) take(now time.Duration) int {
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
			p.End(err)
			return n + 1
		}
		if packet == nil {
			break
		}
		for _, piece := range packet.Pieces {
			size += len(piece)
		}
		p.Handle(packet, now)
	}
	c.Release() // of what has been passed over, too
	return n
}

// Handle handles a packet that was taken from the channel.
func (p *Peer) Handle(packet *Packet, now time.Duration) {
	if path := p.endpoint.PathOf(p.ends.Peer.Device, &packet.Packet); path != nil {
		p.peers.cfg.Packets.ReceivedPackets++
		p.peers.counters.Received++
		if !path.queuePair.ReceivePieces(&packet.Packet, packet.Pieces, packet.Intact, now) {
			p.unreadable(packet)
		}
		path.user.Activate()
		if path.peer == p {
			path.heard = true
		}
	}
	p.agree() // a peer that sends through it has taken it into use
}

// unreadable tells the queue pair that has sent a packet that its payload cannot be read. It is one of
// this device: memory of another process can be read, since it is mapped here too.
func (p *Peer) unreadable(packet *Packet) {
	owner, known := p.channel.Owner()
	if !known {
		return
	}
	for path := range p.paths {
		if path.queuePair.Num() == owner {
			path.queuePair.Unreadable(&packet.Packet)
			path.user.Activate()
			return
		}
	}
}

// Ends are those of the channel, if there is one.
func (p *Peer) Ends() Ends { return p.ends }

// Channel is the channel to the peer; nil: there is none.
func (p *Peer) Channel() *Channel { return p.channel }

// Dialled reports whether a channel is being made.
func (p *Peer) Dialled() bool { return p.meetings > 0 }

// Redial makes a channel, unless that is done already.
func (p *Peer) Redial() {
	if p.meetings == 0 {
		p.peers.dial(p, minRedialPause)
	}
}

// wait makes a path send again when there is room in the channel. It reports false if there is
// room now.
func (p *Peer) wait(path *Path) bool {
	full, err := p.channel.AwaitRoom()
	if err != nil {
		p.End(err)
		return false
	}
	if full && !path.waiting {
		path.waiting = true
		p.waiting = append(p.waiting, path)
	}
	return full
}

// endWait takes back wait.
func (p *Peer) endWait(path *Path) {
	if !path.waiting {
		return
	}
	path.waiting = false
	p.waiting = slices.DeleteFunc(p.waiting, func(w *Path) bool { return w == path })
}

// resume lets the paths send that wait for room, if there is any.
func (p *Peer) resume() {
	room, err := p.channel.Room(1)
	if err != nil {
		p.End(err)
		return
	}
	if room == 0 {
		return
	}
	for _, path := range p.waiting {
		path.waiting = false
		path.user.Activate()
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}

// References says where the payload of a packet lies in memory that the peer has been shown. It
// returns nil if it does not, or not yet.
func (p *Peer) References(pieces [][]byte) []Reference {
	refs := p.refs[:0]
	for _, piece := range pieces {
		m, off := p.peers.cfg.Memories.find(piece)
		if m == nil || len(refs) == cap(refs) {
			return nil
		}
		number, ok := p.channel.Shown(m)
		if !ok {
			return nil
		}
		refs = append(refs, Reference{Memory: number, Length: uint32(len(piece)), Offset: off})
	}
	return refs
}

// isLoop reports whether it is the endpoint itself.
func (p *Peer) isLoop() bool { return p.ends.Local == p.ends.Peer }

// begin takes a channel into use.
func (p *Peer) begin(c *Channel) {
	l := p.peers
	p.channel = c
	l.polled.add(p)
	if p.isLoop() {
		p.agree()
		c.Await()
		return
	}
	c.SetBudget(&l.budget)
	if !c.Await() {
		l.Woken()
	}
	begun := c.Mark()
	l.channels++
	l.serving.Go(func() {
		if p.serve(c, begun) {
			l.cutOff(c)
		}
		c.CloseConnection()
		l.cfg.Host.Lock()
		l.channels--
		l.cfg.Host.Unlock()
	})
}

// agree makes packets leave through the channel, since the peer has taken it into use too. Before,
// packets could lie there while later messages of the connection manager go by UDP: this end would
// learn that the connection has ended before its last acknowledgement came.
func (p *Peer) agree() {
	if p.agreed || p.channel == nil {
		return
	}
	p.agreed = true
	for path := range p.paths {
		path.join()
	}
	p.peers.cfg.Log.Debug().Stringer("peer", p.ends.Peer).Msg("packets go through shared memory")
}

// serve takes the messages of a channel until it ends. It reports whether cutOff is to be called.
// A peer that answers what it was asked when the channel began has begun too, as has one that sends.
func (p *Peer) serve(c *Channel, begun uint32) bool {
	l, host := p.peers, p.peers.cfg.Host
	agreed := false
	err := c.Serve(host, func() {
		if !agreed {
			host.Lock()
			if agreed = c.OutlivedBy(begun); agreed && p.channel == c {
				p.agree()
			}
			host.Unlock()
		}
		l.Woken()
	})
	host.Lock()
	defer host.Unlock()
	if p.channel == c {
		p.drain()
	}
	mayBeDead := c.Stuck() // a process that is killed in the midst of a copy does not end it either
	if p.channel == c {
		p.End(err)
		mayBeDead = errors.Is(err, ErrCutOff)
	}
	if !mayBeDead || l.unresolved == maxChannels {
		return false
	}
	l.unresolved++
	return true
}

// maxDrain bounds how many packets are taken from a channel that has ended: no ring holds more.
const maxDrain = 1 << 14

// drain handles what a peer has sent before it ended: a program may well answer and exit.
func (p *Peer) drain() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	for n := 0; n < maxDrain && p.channel != nil; {
		taken := p.take(p.peers.cfg.Now())
		if taken == 0 {
			return
		}
		n += taken
	}
}

// End ends the channel, for that reason: its paths go on by UDP.
func (p *Peer) End(err error) {
	l, log, c := p.peers, &p.peers.cfg.Log, p.channel
	p.close()
	for path := range p.paths {
		path.part(c)
	}
	switch {
	case errors.Is(err, ErrStandsStill):
		log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP for a while")
		if l.on && p.users > 0 && !p.pausing {
			p.pausing = true
			l.dialling.Go(func() { l.dialAgain(p, minRedialPause) })
		}
	case errors.Is(err, ErrDisorder):
		l.counters.Disorder++
		log.Warn().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP: the other process has broken the shared memory")
	case errors.Is(err, io.EOF):
		// The peer has died, or has closed its device. Another process may have its address
		// already, and connect from it: that one is not to be disturbed.
		now := l.cfg.Now()
		for path := range p.paths {
			path.queuePair.PeerUnreachable(now)
			path.user.Activate()
		}
		fallthrough
	default:
		log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("packets go by UDP again")
	}
	l.forgetUnused(p)
	l.cfg.Host.WakeIfReady()
}

// close closes the channel.
func (p *Peer) close() {
	p.peers.polled.remove(p)
	p.channel.Close()
	p.channel, p.agreed = nil, false
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}
