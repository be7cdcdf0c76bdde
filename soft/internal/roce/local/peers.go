package local

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Shard is a shard of a device. Its lock guards everything in this package, unless noted
// otherwise.
type Shard interface {
	sync.Locker
	// SendReady sends what is ready; WakeIfReady makes a goroutine of the shard do so.
	SendReady(now time.Duration)
	WakeIfReady()
	// Wake wakes the goroutine that waits for the shard. It is called with and without the lock.
	Wake()
	// MayShare reports whether packets from an address may come through shared memory.
	MayShare(addr netip.Addr) bool
	// Closed reports whether the device is closed.
	Closed() bool
}

// Endpoint is an entry of the device's GID table, in the shard.
type Endpoint interface {
	Addr() netip.AddrPort
	// Receive handles packets that have arrived by UDP, and reports whether there were any.
	Receive(now time.Duration) bool
	// PathOf returns the path of a packet from a device. It returns nil if there is no such
	// path; the packet is dropped then.
	PathOf(from netip.AddrPort, p *wire.Packet) *Path
	// Dials reports whether the shard may dial a device, or has to be dialled.
	Dials(device netip.AddrPort) bool
}

// Config configures Peers.
type Config struct {
	Shard     Shard
	Index     int // its index
	Endpoints []Endpoint
	Memories  *Memories           // of the device
	Packets   *transport.Counters // of the shard
	Now       func() time.Duration
	Log       zerolog.Logger
	Running   *sync.WaitGroup // for goroutines that end after Off
	Sockets   link.WaitSet    // where the shard waits
}

// Peers are the devices of this machine that a shard can reach through shared memory,
// including its own device. The zero value reaches none.
type Peers struct {
	cfg       Config
	on        bool
	listeners []*Listener
	peers     map[Ends]*Peer
	polled    pollList // the peers with a channel
	unflushed []*Peer  // the peers with packets that Flush has to publish
	budget    Budget

	ctx      context.Context // for dialling
	cancel   context.CancelFunc
	dialling sync.WaitGroup
	serving  sync.WaitGroup // goroutines that serve channels
	channels int            // open connections to other devices

	// unresolved counts the channels that were cut off, or whose peer stopped during a copy,
	// until it is known whether the peer's process is dead.
	unresolved int

	counters Counters
}

// Counters count packets through shared memory, channels that ended because the peer broke the
// memory, and peers that died.
type Counters struct{ Sent, Received, Corrupt, Died uint64 }

// maxChannels bounds the channels of a shard. Each takes 2 MiB of memory once it is in use.
const maxChannels = 1024

// Open lets other devices of this machine find the shard. The lock is held, or no other
// goroutine knows the device yet.
func (l *Peers) Open(cfg Config) {
	l.cfg, l.on = cfg, true
	l.peers = make(map[Ends]*Peer)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for _, e := range cfg.Endpoints {
		if err := l.listen(e); errors.Is(err, syscall.EADDRINUSE) {
			cfg.Running.Go(func() { l.listenLater(e) })
		}
	}
}

// On reports whether there may be channels.
func (l *Peers) On() bool { return l.on }

// Active reports whether there are channels.
func (l *Peers) Active() bool { return len(l.polled.peers) > 0 }

// Counters returns the counters.
func (l *Peers) Counters() Counters { return l.counters }

// All returns all known peers.
func (l *Peers) All() []*Peer { return slices.Collect(maps.Values(l.peers)) }

// listen lets devices of this machine find the endpoint.
func (l *Peers) listen(e Endpoint) error {
	listener, err := Listen(l.address(e))
	if err != nil {
		l.cfg.Log.Debug().Err(err).Stringer("address", e.Addr()).Msg("cannot listen for other devices of this machine; they are reached by UDP")
		return err
	}
	listener.Serve(func(peer Address) func(*Channel) { return l.decideDial(e, peer) })
	l.listeners = append(l.listeners, listener)
	return nil
}

// shortestListenPause and longestListenPause are the pauses between attempts to listen under a
// name that is in use. The attempts end after the longest pause.
const (
	shortestListenPause = time.Millisecond
	longestListenPause  = 16 * time.Second
)

// listenLater listens as soon as the name is free: a process that ends may release its UDP
// address before its name.
func (l *Peers) listenLater(e Endpoint) {
	for pause := shortestListenPause; pause <= longestListenPause; pause *= 2 {
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(pause):
		}
		l.cfg.Shard.Lock()
		inUse := l.on && errors.Is(l.listen(e), syscall.EADDRINUSE)
		l.cfg.Shard.Unlock()
		if !inUse {
			return
		}
	}
}

// address returns the shard's address at an endpoint.
func (l *Peers) address(e Endpoint) Address {
	return Address{Device: e.Addr(), Shard: l.cfg.Index}
}

// NewPath makes a queue pair's path from an endpoint to a peer, and starts to look for the peer.
// [Path.Begin] starts the use of the path.
func (l *Peers) NewPath(e Endpoint, addr Address, q *transport.QP, user User) *Path {
	p := l.peer(e, addr)
	path := &Path{peers: l, peer: p, queuePair: q, user: user}
	p.users++
	l.ensureChannel(p)
	p.paths[path] = struct{}{}
	return path
}

// ensureChannel makes a channel with a peer if one is needed and there is none.
func (l *Peers) ensureChannel(p *Peer) {
	switch {
	case !p.isLoop():
		if l.mayDial(p) {
			l.dial(p, minRedialPause)
		}
	case p.users > 0 && p.channel == nil && l.channelAllowed(p.ends.Peer):
		p.begin(NewLoop(p.ends.Peer, l.cfg.Shard.Wake))
	}
}

// channelAllowed reports whether a channel with a peer is allowed.
func (l *Peers) channelAllowed(addr Address) bool {
	return l.on && l.cfg.Shard.MayShare(addr.Device.Addr())
}

// mayDial reports whether a channel with a peer is needed, and none is being made.
func (l *Peers) mayDial(p *Peer) bool {
	return l.channelAllowed(p.ends.Peer) && p.endpoint.Dials(p.ends.Peer.Device) && p.users > 0 && p.channel == nil && p.handshakes == 0 && !p.redialPending && l.channels < maxChannels
}

// Reconsider ends channels that are no longer allowed ([Shard.MayShare]), and makes those that
// are.
func (l *Peers) Reconsider() {
	for _, p := range l.All() { // a copy, since unused peers are removed
		if p.channel != nil && !l.channelAllowed(p.ends.Peer) {
			p.End(net.ErrClosed)
		}
		l.ensureChannel(p)
	}
}

func (l *Peers) peer(e Endpoint, addr Address) *Peer {
	ends := Ends{Local: l.address(e), Peer: addr}
	p := l.peers[ends]
	if p == nil {
		p = &Peer{peers: l, endpoint: e, ends: ends, paths: make(map[*Path]struct{})}
		l.peers[ends] = p
	}
	return p
}

// removePath removes a path that is no longer used. A channel to another device stays for the next
// path.
func (l *Peers) removePath(path *Path) {
	p := path.peer
	delete(p.paths, path)
	p.users--
	if p.users == 0 && p.channel != nil && p.isLoop() {
		p.close()
	}
	l.forgetUnused(p)
}

func (l *Peers) forgetUnused(p *Peer) {
	if p.users == 0 && p.handshakes == 0 && !p.redialPending && p.channel == nil {
		delete(l.peers, p.ends)
	}
}

// dial makes a channel with a peer. If the peer's process does not respond, or the handshake
// times out, it dials again after a pause.
func (l *Peers) dial(p *Peer, pause time.Duration) {
	p.handshakes++
	l.dialling.Go(func() {
		c, err := Dial(l.ctx, p.ends)
		for try := 0; errors.Is(err, ErrRefused) && try < dialTries && l.waitToRetry(p); try++ {
			c, err = Dial(l.ctx, p.ends)
		}
		if err != nil {
			l.cfg.Log.Trace().Err(err).Msg("no shared memory with the peer; packets use UDP")
		}
		again := handshakeIncomplete(err)
		l.cfg.Shard.Lock()
		p.redialPending = again
		unused := l.handshakeDoneLocked(p, c)
		l.cfg.Shard.Unlock()
		if unused {
			c.CloseConnection()
		}
		if again {
			l.dialAgain(p, pause)
		}
	})
}

// dialAgain dials after a pause, if there is still no channel.
func (l *Peers) dialAgain(p *Peer, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-l.ctx.Done():
	}
	l.cfg.Shard.Lock()
	defer l.cfg.Shard.Unlock()
	p.redialPending = false
	if l.mayDial(p) {
		l.dial(p, min(2*pause, maxRedialPause))
	}
	l.forgetUnused(p)
}

// handshakeIncomplete reports whether a peer was found but did not finish the handshake.
func handshakeIncomplete(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, io.EOF)
}

const (
	minRedialPause = time.Second
	maxRedialPause = time.Minute
)

const (
	// dialTries and dialInterval are for a peer that refuses because it has not noticed yet
	// that an earlier device with this address is gone.
	dialTries    = 20
	dialInterval = 10 * time.Millisecond
)

// waitToRetry waits for dialInterval, and reports whether there is still no channel with a peer.
func (l *Peers) waitToRetry(p *Peer) bool {
	select {
	case <-time.After(dialInterval):
	case <-l.ctx.Done():
		return false
	}
	l.cfg.Shard.Lock()
	defer l.cfg.Shard.Unlock()
	return p.channel == nil
}

// decideDial decides whether a device that dials may have a channel. It returns the function that
// receives the channel, or nil to refuse. If two devices dial each other at the same time, the
// one with the lower address prevails.
func (l *Peers) decideDial(e Endpoint, addr Address) func(*Channel) {
	l.cfg.Shard.Lock()
	defer l.cfg.Shard.Unlock()
	if !l.channelAllowed(addr) || l.channels >= maxChannels {
		return nil
	}
	p := l.peer(e, addr)
	if p.channel != nil || p.handshakes > 0 && l.address(e).Compare(addr) < 0 {
		return nil
	}
	p.handshakes++
	return func(c *Channel) { l.handshakeDone(p, c) }
}

// handshakeDone accepts the channel that was made with a peer. Nil: the handshake failed.
func (l *Peers) handshakeDone(p *Peer, c *Channel) {
	l.cfg.Shard.Lock()
	unused := l.handshakeDoneLocked(p, c)
	l.cfg.Shard.Unlock()
	if unused {
		c.CloseConnection()
	}
}

// handshakeDoneLocked is handshakeDone under the lock. It reports whether it has closed the
// channel, whose connection the caller must then close without the lock.
func (l *Peers) handshakeDoneLocked(p *Peer, c *Channel) (unused bool) {
	p.handshakes--
	switch {
	case c == nil:
		l.forgetUnused(p)
	case !l.channelAllowed(p.ends.Peer) || p.channel != nil:
		c.Close()
		l.forgetUnused(p)
		return true
	case !p.watch(c):
		c.Close()
		l.forgetUnused(p)
		return true
	default:
		p.begin(c)
	}
	return false
}

// Others returns the number of other devices with a channel.
func (l *Peers) Others() int {
	n := 0
	for _, p := range l.polled.peers {
		if !p.isLoop() {
			n++
		}
	}
	return n
}

// Receive handles the packets that arrived through channels, and reports whether there were
// any.
func (l *Peers) Receive(now time.Duration) bool {
	return l.polled.pass(func(p *Peer) bool { return p.receive(now) })
}

// noteSent records that packets are sent to a peer, so that Flush publishes them.
func (l *Peers) noteSent(p *Peer) {
	if !p.unflushed {
		p.unflushed = true
		l.unflushed = append(l.unflushed, p)
	}
}

// Flush makes the packets that were sent visible to the peers.
func (l *Peers) Flush() {
	for _, p := range l.unflushed {
		p.unflushed = false
		if p.channel != nil {
			p.channel.Flush()
		}
	}
	l.unflushed = l.unflushed[:0]
}

// ArmWakeups asks to be woken when packets arrive, or when there is room for waiting paths. It
// reports true if neither is the case yet.
func (l *Peers) ArmWakeups() bool {
	none := true
	for _, p := range l.polled.peers {
		if !p.channel.ArmWakeup() {
			none = false
		}
		if len(p.waiting) == 0 {
			continue
		}
		// A wake-up may have freed too little room: ask again.
		if full, err := p.channel.ArmRoomWakeup(); err != nil || !full {
			none = false
		}
	}
	return none
}

// Off ends all channels for good. The caller calls wait without the lock: it waits for
// channels that are ending or being made. Other processes can delay that.
func (l *Peers) Off() (wait func()) {
	if !l.on {
		return func() {}
	}
	l.on = false
	l.cancel()
	for len(l.polled.peers) > 0 {
		l.polled.peers[len(l.polled.peers)-1].End(net.ErrClosed)
	}
	return func() {
		for _, listener := range l.listeners {
			listener.Close()
		}
		l.dialling.Wait()
		l.serving.Wait()
	}
}

// Revoke stops peers from taking more payload from mem.
func (l *Peers) Revoke(mem []byte) {
	for _, p := range l.polled.peers {
		p.channel.RevokeMemory(mem)
	}
}

// Forget makes peers unmap a memory that was exported to them.
func (l *Peers) Forget(m *Memory) {
	for i := len(l.polled.peers) - 1; i >= 0; i-- { // backwards, since a channel may end
		if p := l.polled.peers[i]; !p.channel.Forget(m) {
			p.End(net.ErrClosed)
		}
	}
}
