package roce

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/spin"
)

// localDevice is what a shard has to do with other devices of this machine, and with other
// queue pairs of its own. It is guarded by the shard's lock, unless something else is said.
type localDevice struct {
	shard     *shard
	on        bool
	listeners []*local.Listener
	peers     map[local.Ends]*localPeer
	polled    pollList     // those with a channel
	unflushed []*localPeer // that something was sent to
	budget    local.Budget

	ctx      context.Context // of dialling
	cancel   context.CancelFunc
	dialling sync.WaitGroup
	serving  sync.WaitGroup // of channels
	channels int            // to other devices, whose connections are open

	seen   atomic.Uint64 // polls of programs when this end last asked to be woken
	wakes  chan struct{} // there is work for the worker
	sleeps chan struct{} // a program is about to sleep

	doubts int // channels that were cut off, or whose peer stands still, of which it is not known yet why

	localCounters
}

type localCounters struct{ sent, received, disorder, died uint64 }

// maxLocalPeers is how many channels a shard has at most. Each takes 2 MiB of memory once it
// is in use.
const maxLocalPeers = 1024

// openLocal makes the shard found by other devices of this machine. Captures need packets on a
// socket, as faults do (mayMeet).
func (s *shard) openLocal() {
	d, l := s.device, &s.local
	l.shard = s
	if d.cfg.DisableLocal || d.capture != nil {
		return
	}
	l.on = true
	l.peers = make(map[local.Ends]*localPeer)
	l.wakes, l.sleeps = make(chan struct{}, 1), make(chan struct{}, 1)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for _, e := range s.endpoints {
		if err := l.listen(e); errors.Is(err, syscall.EADDRINUSE) {
			d.running.Go(func() { l.listenLater(e) })
		}
	}
	d.running.Go(l.work)
}

// listen has devices of this machine find the endpoint. The lock is held, or nobody else knows of
// the device yet.
func (l *localDevice) listen(e *endpoint) error {
	listener, err := local.Listen(l.address(e))
	if err != nil {
		l.shard.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("devices of this machine are reached by UDP")
		return err
	}
	listener.Serve(func(peer local.Address) func(*local.Channel) { return l.answer(e, peer) })
	l.listeners = append(l.listeners, listener)
	return nil
}

// shortestListenPause and longestListenPause are between attempts to listen by a name that is in
// use. After the longest there are no more.
const (
	shortestListenPause = time.Millisecond
	longestListenPause  = 16 * time.Second
)

// listenLater listens as soon as the name is free: a process that ends may give back its UDP
// address before its name.
func (l *localDevice) listenLater(e *endpoint) {
	for pause := shortestListenPause; pause <= longestListenPause; pause *= 2 {
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(pause):
		}
		l.shard.mu.Lock()
		inUse := l.on && errors.Is(l.listen(e), syscall.EADDRINUSE)
		l.shard.mu.Unlock()
		if !inUse {
			return
		}
	}
}

// address is where the shard is found at an endpoint.
func (l *localDevice) address(e *endpoint) local.Address {
	return local.Address{Device: e.socket.Addr(), Shard: l.shard.index}
}

// pathTo makes the path to a queue pair whose device may be one of this machine. If it is, the
// number of the queue pair tells the shard.
func (l *localDevice) pathTo(q *queuePair, udp udpPath, destQPN uint32) path {
	if !l.on {
		return &udp
	}
	return &localPath{udpPath: udp, queuePair: q, peerShard: int(destQPN & shardBits)}
}

// join returns the peer that a path leads to from now on, until leave, and looks for it.
func (l *localDevice) join(e *endpoint, addr local.Address) *localPeer {
	p := l.peer(e, addr)
	p.users++
	l.meet(p)
	return p
}

// meet makes a channel with a peer if one is wanted, and there is none.
func (l *localDevice) meet(p *localPeer) {
	switch {
	case !p.isLoop():
		if l.mayDial(p) {
			l.dial(p, minRedialPause)
		}
	case p.users > 0 && p.channel == nil && l.mayMeet(p.ends.Peer):
		p.begin(local.NewLoop(p.ends.Peer, l.woken))
	}
}

// mayMeet reports whether there may be a channel with a peer. Faults need packets on a socket.
func (l *localDevice) mayMeet(addr local.Address) bool {
	return l.on && !l.shard.device.faults.Of(addr.Device.Addr()).Any()
}

// mayDial reports whether a channel with a peer is wanted, and nobody is making one.
func (l *localDevice) mayDial(p *localPeer) bool {
	return l.mayMeet(p.ends.Peer) && p.users > 0 && p.channel == nil && p.meetings == 0 && !p.pausing && l.channels < maxLocalPeers
}

// faultsChanged ends the channels with peers whose packets have faults now, and makes them
// again with those whose packets no longer have any.
func (l *localDevice) faultsChanged() {
	for _, p := range slices.Collect(maps.Values(l.peers)) { // peers that are no longer used go
		if p.channel != nil && !l.mayMeet(p.ends.Peer) {
			p.end(net.ErrClosed)
		}
		l.meet(p)
	}
}

func (l *localDevice) peer(e *endpoint, addr local.Address) *localPeer {
	ends := local.Ends{Local: l.address(e), Peer: addr}
	p := l.peers[ends]
	if p == nil {
		p = &localPeer{endpoint: e, ends: ends}
		l.peers[ends] = p
	}
	return p
}

// leave notes that a path to a peer is no longer in use. A channel to another device stays for
// the next one.
func (l *localDevice) leave(p *localPeer) {
	p.users--
	if p.users == 0 && p.channel != nil && p.isLoop() {
		p.close()
	}
	l.forgetUnused(p)
}

func (l *localDevice) forgetUnused(p *localPeer) {
	if p.users == 0 && p.meetings == 0 && !p.pausing && p.channel == nil {
		delete(l.peers, p.ends)
	}
}

// dial makes a channel with a peer. Where the peer's process stands still, or comes to
// nothing for lack of time, it does so again after a pause.
func (l *localDevice) dial(p *localPeer, pause time.Duration) {
	p.meetings++
	l.dialling.Go(func() {
		c, err := local.Dial(l.ctx, p.ends)
		for try := 0; errors.Is(err, local.ErrRefused) && try < dialTries && l.awaited(p); try++ {
			c, err = local.Dial(l.ctx, p.ends)
		}
		if err != nil {
			l.shard.device.log.Trace().Err(err).Msg("packets go by UDP")
		}
		again := unanswered(err)
		l.shard.mu.Lock()
		p.pausing = again
		unused := l.metLocked(p, c)
		l.shard.mu.Unlock()
		if unused {
			c.CloseConnection()
		}
		if again {
			l.dialAgain(p, pause)
		}
	})
}

// dialAgain dials after a pause, if there is still no channel.
func (l *localDevice) dialAgain(p *localPeer, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-l.ctx.Done():
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	p.pausing = false
	if l.mayDial(p) {
		l.dial(p, min(2*pause, maxRedialPause))
	}
	l.forgetUnused(p)
}

// unanswered reports whether a peer was found that did not come to an answer.
func unanswered(err error) bool {
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

// awaited waits for dialInterval, and reports whether there is still no channel with a peer.
func (l *localDevice) awaited(p *localPeer) bool {
	select {
	case <-time.After(dialInterval):
	case <-l.ctx.Done():
		return false
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	return p.channel == nil
}

// answer decides whether a device that dials is to have a channel, and returns what takes it
// then, or nil. Of two that dial at the same time the one with the lower address has its way.
func (l *localDevice) answer(e *endpoint, addr local.Address) func(*local.Channel) {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if !l.mayMeet(addr) || l.channels >= maxLocalPeers {
		return nil
	}
	p := l.peer(e, addr)
	if p.channel != nil || p.meetings > 0 && l.address(e).Compare(addr) < 0 {
		return nil
	}
	p.meetings++
	return func(c *local.Channel) { l.met(p, c) }
}

// met takes the channel that was made with a peer, if it is not nil.
func (l *localDevice) met(p *localPeer, c *local.Channel) {
	l.shard.mu.Lock()
	unused := l.metLocked(p, c)
	l.shard.mu.Unlock()
	if unused {
		c.CloseConnection()
	}
}

// metLocked reports whether it has closed the channel, whose connection is to be closed without
// the lock.
func (l *localDevice) metLocked(p *localPeer, c *local.Channel) (unused bool) {
	p.meetings--
	switch {
	case c == nil:
		l.forgetUnused(p)
	case !l.mayMeet(p.ends.Peer) || p.channel != nil:
		c.Close()
		l.forgetUnused(p)
		return true
	default:
		p.begin(c)
	}
	return false
}

// others is how many other devices there is a channel with.
func (l *localDevice) others() int {
	n := 0
	for _, p := range l.polled.peers {
		if !p.isLoop() {
			n++
		}
	}
	return n
}

// receive handles what has come through the channels, and reports whether anything has.
func (l *localDevice) receive(now time.Duration) bool {
	return l.polled.pass(func(p *localPeer) bool { return p.receive(now) })
}

// sends has flush show a peer what is sent to it.
func (l *localDevice) sends(p *localPeer) {
	if !p.unflushed {
		p.unflushed = true
		l.unflushed = append(l.unflushed, p)
	}
}

// flush shows the peers what was sent.
func (l *localDevice) flush() {
	for _, p := range l.unflushed {
		p.unflushed = false
		if p.channel != nil {
			p.channel.Flush()
		}
	}
	l.unflushed = l.unflushed[:0]
}

// await asks to be woken when something comes, or there is room for what waits for it. It reports
// whether neither is the case yet.
func (l *localDevice) await() bool {
	none := true
	l.seen.Store(l.shard.polls.Load())
	for _, p := range l.polled.peers {
		if !p.channel.Await() {
			none = false
		}
		if len(p.waiting) == 0 {
			continue
		}
		// Who has been woken for room that was too little has to ask again.
		if full, err := p.channel.AwaitRoom(); err != nil || !full {
			none = false
		}
	}
	return none
}

// woken is called, with and without the lock, when there is something to do in the channels.
func (l *localDevice) woken() {
	select {
	case l.wakes <- struct{}{}:
	default:
	}
}

// work makes progress when a peer wakes this end and no program polls. While programs do, it
// looks every pollerGrace whether they still do: one may stop without having armed a
// completion queue.
func (l *localDevice) work() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	d := l.shard.device
	spinning := spin.New(d.cfg.Spin)
	for {
		select {
		case <-l.wakes:
		case <-l.ctx.Done():
			return
		}
		spinning.Woken(d.now())
		for {
			more, polled := l.round(&spinning)
			if !more {
				break
			}
			if !polled {
				if spinning.Idle() {
					spinning.Yield()
				}
				continue
			}
			before := l.shard.polls.Load()
			timer.Reset(pollerGrace)
			select {
			case <-timer.C:
			case <-l.sleeps:
				continue
			case <-l.ctx.Done():
				return
			}
			if l.shard.polls.Load() == before {
				l.seen.Store(before) // it works for programs that have not polled since
			}
		}
	}
}

// round is a turn of work. It reports whether there may be more to do, and whether programs
// have polled since this end last asked to be woken, and none of them is about to sleep.
func (l *localDevice) round(spinning *spin.Spin) (more, polled bool) {
	s := l.shard
	if s.polls.Load() != l.seen.Load() && !s.asleep.Load() {
		return true, true // before the lock: see endpoint.lockBeside
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.on {
		return false, false
	}
	if now := s.device.now(); spinning.PollsOn(now, s.progress(now, nil)) {
		return true, false
	}
	return !l.await(), false
}

// programSleeps has the worker stand in at once for a program that has armed a completion
// queue. The lock is held.
func (l *localDevice) programSleeps() {
	if !l.await() {
		l.woken()
	}
	select {
	case l.sleeps <- struct{}{}:
	default:
	}
}

// off ends all channels, and has no others made. It returns what waits for those that end or are
// being made, to be called without the lock. Other processes can hold that up.
func (l *localDevice) off() (wait func()) {
	if !l.on {
		return func() {}
	}
	l.on = false
	l.cancel()
	for len(l.polled.peers) > 0 {
		l.polled.peers[len(l.polled.peers)-1].end(net.ErrClosed)
	}
	return func() {
		for _, listener := range l.listeners {
			listener.Close()
		}
		l.dialling.Wait()
		l.serving.Wait()
	}
}

// maxReceives bounds how often a socket is read for what came before something else.
const maxReceives = 64

// cutOff finds out whether the process at the other end of a channel that was cut off, or got stuck,
// is dead. If so, it fails the connections whose peers were of that process: none of them will ever answer.
func (l *localDevice) cutOff(c *local.Channel) {
	died := c.PeerDies(l.ctx)
	s, d := l.shard, l.shard.device
	s.mu.Lock()
	defer s.mu.Unlock()
	l.doubts--
	if !died || d.closed {
		return
	}
	l.died++
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	for _, e := range s.endpoints {                          // what it has sent by UDP, before there was a channel
		for n := 0; n < maxReceives && e.receive(d.now()); n++ {
		}
	}
	for _, q := range d.queuePairs {
		if path, ok := q.path.(*localPath); ok && q.shard == s && path.left == c {
			q.transport.PeerGone()
		}
	}
	s.transmit(d.now())
}
