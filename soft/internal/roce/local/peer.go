package local

import (
	"errors"
	"io"
	"runtime/debug"
	"slices"
	"time"
)

// Peer is a device that may be on this machine, or this device itself, together with the
// endpoint that reaches it.
type Peer struct {
	peers         *Peers
	endpoint      Endpoint
	ends          Ends
	users         int // paths to it
	paths         map[*Path]struct{}
	handshakes    int      // handshakes in progress
	redialPending bool     // until it is dialled again
	channel       *Channel // nil: there is none
	established   bool     // the peer uses the channel too
	waiting       []*Path  // for room in it

	index, emptyPasses int  // in the poll list
	unflushed          bool // packets were sent that Flush has not published yet

	refs [MaxReferences]Reference
}

// receivePackets and receiveBytes bound what is received from one channel before the next one
// is read, and before this end sends its responses, on which the peer can work meanwhile.
const (
	receivePackets = 64
	receiveBytes   = 256 << 10
)

// receive handles the packets that have arrived and reports whether there were any.
func (p *Peer) receive(now time.Duration) bool { return p.handlePackets(now) > 0 }

// handlePackets handles packets that have arrived, and returns their number, plus one if it
// had to end the channel.
func (p *Peer) handlePackets(now time.Duration) int {
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
	c.Release() // also of discarded packets
	return n
}

// Handle handles a packet that was received from the channel.
func (p *Peer) Handle(packet *Packet, now time.Duration) {
	if path := p.endpoint.PathOf(p.ends.Peer.Device, &packet.Packet); path != nil {
		p.peers.cfg.Packets.ReceivedPackets++
		p.peers.counters.Received++
		if !path.queuePair.ReceivePieces(&packet.Packet, packet.MTU, packet.Pieces, packet.Intact, now) {
			p.unreadable(packet)
		}
		path.user.Respond(now)
		if path.peer == p {
			path.received = true
		}
	}
	p.establish() // a peer that sends through the channel uses it
}

// unreadable tells the queue pair that sent a packet that its payload cannot be read. The
// sender is in this device: the memory of another process can be read, since it is mapped
// here.
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

// Ends returns the ends of the channel, if there is one.
func (p *Peer) Ends() Ends { return p.ends }

// Channel returns the channel to the peer; nil: there is none.
func (p *Peer) Channel() *Channel { return p.channel }

// Dialled reports whether a channel is being made.
func (p *Peer) Dialled() bool { return p.handshakes > 0 }

// wait makes a path send again when a pass finds room in the channel. It reports false if there is
// room now. It does not ask to be woken: [Peers.ArmWakeups] does, before a sleep. A peer that woke a
// program that polls would take time from both.
func (p *Peer) wait(path *Path) bool {
	room, err := p.channel.Room(1)
	if err != nil {
		p.End(err)
		return false
	}
	if room > 0 {
		return false
	}
	if !path.waiting {
		path.waiting = true
		p.waiting = append(p.waiting, path)
	}
	return true
}

// endWait undoes wait.
func (p *Peer) endWait(path *Path) {
	if !path.waiting {
		return
	}
	path.waiting = false
	p.waiting = slices.DeleteFunc(p.waiting, func(w *Path) bool { return w == path })
}

// resume activates the paths that wait for room, if there is any.
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

// References returns references to the payload of a packet. It returns nil if the payload is
// not in memory that the peer has mapped, or not yet.
func (p *Peer) References(pieces [][]byte) []Reference {
	refs := p.refs[:0]
	for _, piece := range pieces {
		m, off := p.peers.cfg.Memories.find(piece)
		if m == nil || len(refs) == cap(refs) {
			return nil
		}
		number, ok := p.channel.Exported(m)
		if !ok {
			return nil
		}
		refs = append(refs, Reference{Memory: number, Length: uint32(len(piece)), Offset: off})
	}
	return refs
}

// isLoop reports whether the peer is the endpoint itself.
func (p *Peer) isLoop() bool { return p.ends.Local == p.ends.Peer }

// begin starts the use of a channel.
func (p *Peer) begin(c *Channel) {
	l := p.peers
	p.channel = c
	l.polled.add(p)
	if p.isLoop() {
		p.establish()
		c.ArmWakeup()
		return
	}
	c.SetBudget(&l.budget)
	if !c.ArmWakeup() {
		l.cfg.Shard.Wake()
	}
	begun := c.Mark()
	l.channels++
	l.serving.Go(func() {
		if p.serve(c, begun) {
			l.checkPeerDied(c)
		}
		c.CloseConnection()
		l.cfg.Shard.Lock()
		l.channels--
		l.cfg.Shard.Unlock()
	})
}

// watch makes the goroutine that waits for the shard take the channel's wake-ups. It reports false if
// that is not possible.
func (p *Peer) watch(c *Channel) bool {
	shard := p.peers.cfg.Shard
	err := c.Watch(p.peers.cfg.Sockets, func() {
		shard.Lock()
		defer shard.Unlock()
		if p.channel == c {
			c.TakeWakeups()
		}
	})
	if err != nil {
		p.peers.cfg.Log.Warn().Err(err).Stringer("peer", p.ends.Peer).Msg("cannot wait for the peer's packets in shared memory; packets use UDP")
	}
	return err == nil
}

// establish makes packets leave through the channel. It is called once the peer uses the channel
// too. Earlier, packets could wait in it while later messages of the connection manager go by
// UDP: this end would learn of the end of a connection before its last acknowledgement
// arrived.
func (p *Peer) establish() {
	if p.established || p.channel == nil {
		return
	}
	p.established = true
	for path := range p.paths {
		path.joinChannel()
	}
	p.peers.cfg.Log.Debug().Stringer("peer", p.ends.Peer).Msg("packets use shared memory")
}

// serve handles the messages of a channel until it ends. It reports whether checkPeerDied must be
// called. A peer that answers the ping begun uses the channel, as does one that sends packets.
func (p *Peer) serve(c *Channel, begun uint32) bool {
	l, shard := p.peers, p.peers.cfg.Shard
	established := false
	err := c.Serve(shard, func() {
		if !established {
			shard.Lock()
			if established = c.AliveAfter(begun); established && p.channel == c {
				p.establish()
			}
			shard.Unlock()
		}
		shard.Wake()
	})
	shard.Lock()
	defer shard.Unlock()
	if p.channel == c {
		p.drain()
	}
	mayBeDead := c.Stalled() // a process that is killed during a copy does not finish it either
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

// maxDrain bounds how many packets are received from a channel that has ended. No ring holds
// more.
const maxDrain = 1 << 14

// drain handles what a peer sent before its end: a program may reply and exit.
func (p *Peer) drain() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	for n := 0; n < maxDrain && p.channel != nil; {
		taken := p.handlePackets(p.peers.cfg.Now())
		if taken == 0 {
			return
		}
		n += taken
	}
}

// End ends the channel with err as the reason. Its paths continue by UDP.
func (p *Peer) End(err error) {
	l, log, c := p.peers, &p.peers.cfg.Log, p.channel
	p.close()
	for path := range p.paths {
		path.leaveChannel(c)
	}
	switch {
	case errors.Is(err, ErrStalled):
		log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("the peer stopped during a copy; packets use UDP for a while")
		if l.on && p.users > 0 && !p.redialPending {
			p.redialPending = true
			l.dialling.Go(func() { l.dialAgain(p, minRedialPause) })
		}
	case errors.Is(err, ErrCorrupt):
		l.counters.Corrupt++
		log.Warn().Err(err).Stringer("peer", p.ends.Peer).Msg("the peer corrupted the shared memory; packets use UDP")
	case errors.Is(err, io.EOF):
		// The peer has died, or has closed its device. The queue pairs only probe it: another
		// process may have its address already, and must not be disturbed.
		now := l.cfg.Now()
		for path := range p.paths {
			path.queuePair.PeerUnreachable(now)
			path.user.Activate()
		}
		fallthrough
	default:
		log.Debug().Err(err).Stringer("peer", p.ends.Peer).Msg("packets use UDP again")
	}
	l.forgetUnused(p)
	l.cfg.Shard.WakeIfReady()
}

// close closes the channel.
func (p *Peer) close() {
	p.peers.polled.remove(p)
	p.channel.Close()
	p.channel, p.established = nil, false
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}
