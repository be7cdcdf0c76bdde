package roce

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/local"
)

// localDevice is what a device has to do with others of this machine. It is guarded by the
// lock of the first shard, unless something else is said.
type localDevice struct {
	device    *Device
	on        bool
	listeners []*local.Listener
	peers     map[local.Ends]*localPeer
	polled    []*localPeer // with a channel
	memories  sharedMemories
	budget    local.Budget

	ctx      context.Context // of dialling
	cancel   context.CancelFunc
	dialling sync.WaitGroup

	seen   uint64        // polls of programs when this end last asked to be woken
	wakes  chan struct{} // there is work for the worker
	sleeps chan struct{} // a program is about to sleep

	sent, received, disorder uint64
}

// maxLocalPeers is how many channels a device has at most. Each takes 2 MiB of memory once it
// is in use.
const maxLocalPeers = 1024

// openLocal makes the device found by others of this machine. Faults and captures need
// packets on a socket.
func (d *Device) openLocal() {
	l := &d.local
	l.device = d
	if d.cfg.DisableLocal || d.capture != nil || d.cfg.Faults.any() {
		return
	}
	l.on = true
	l.peers = make(map[local.Ends]*localPeer)
	l.wakes, l.sleeps = make(chan struct{}, 1), make(chan struct{}, 1)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for _, e := range d.endpoints {
		listener, err := local.Listen(e.socket.Addr())
		if err != nil {
			d.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("devices of this machine are reached by UDP")
			continue
		}
		listener.Serve(func(peer netip.AddrPort) func(*local.Channel) { return l.answer(e, peer) })
		l.listeners = append(l.listeners, listener)
	}
	d.running.Go(l.work)
}

// pathTo makes the path to a peer that may be a device of this machine.
func (l *localDevice) pathTo(q *queuePair, out *udpOutput) path {
	if !l.on || out.peer == out.endpoint.socket.Addr() {
		return &udpPath{udpOutput: *out}
	}
	return &localPath{udpPath: udpPath{udpOutput: *out}, queuePair: q}
}

// join returns the peer that a path leads to from now on, until leave, and looks for it.
func (l *localDevice) join(e *endpoint, addr netip.AddrPort) *localPeer {
	p := l.peer(e, addr)
	p.users++
	if l.on && p.channel == nil && p.meetings == 0 && len(l.polled) < maxLocalPeers {
		l.dial(p)
	}
	return p
}

func (l *localDevice) peer(e *endpoint, addr netip.AddrPort) *localPeer {
	ends := local.Ends{Local: e.socket.Addr(), Peer: addr}
	p := l.peers[ends]
	if p == nil {
		p = &localPeer{endpoint: e, ends: ends}
		l.peers[ends] = p
	}
	return p
}

// leave notes that a path to a peer is no longer in use. A channel stays for the next one.
func (l *localDevice) leave(p *localPeer) {
	p.users--
	l.forgetUnused(p)
}

func (l *localDevice) forgetUnused(p *localPeer) {
	if p.users == 0 && p.meetings == 0 && p.channel == nil {
		delete(l.peers, p.ends)
	}
}

func (l *localDevice) dial(p *localPeer) {
	p.meetings++
	l.dialling.Go(func() {
		c, err := local.Dial(l.ctx, p.ends)
		for try := 0; errors.Is(err, local.ErrRefused) && try < dialTries && l.awaited(p); try++ {
			c, err = local.Dial(l.ctx, p.ends)
		}
		if err != nil {
			l.device.log.Trace().Err(err).Msg("packets go by UDP")
		}
		l.met(p, c)
	})
}

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
	l.device.main.mu.Lock()
	defer l.device.main.mu.Unlock()
	return p.channel == nil
}

// answer decides whether a device that dials is to have a channel, and returns what takes it
// then, or nil. Of two that dial at the same time the one with the lower address has its way.
func (l *localDevice) answer(e *endpoint, addr netip.AddrPort) func(*local.Channel) {
	d := l.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	if !l.on || len(l.polled) >= maxLocalPeers {
		return nil
	}
	p := l.peer(e, addr)
	if p.channel != nil || p.meetings > 0 && e.socket.Addr().Compare(addr) < 0 {
		return nil
	}
	p.meetings++
	return func(c *local.Channel) { l.met(p, c) }
}

// met takes the channel that was made with a peer, if it is not nil.
func (l *localDevice) met(p *localPeer, c *local.Channel) {
	d := l.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	p.meetings--
	switch {
	case c == nil:
		l.forgetUnused(p)
	case !l.on || p.channel != nil:
		c.Close()
		l.forgetUnused(p)
	default:
		p.begin(c)
	}
}

// remove takes a peer from those with a channel.
func (l *localDevice) remove(p *localPeer) {
	l.polled = slices.DeleteFunc(l.polled, func(other *localPeer) bool { return other == p })
}

// receive handles what has come through all channels, and reports whether anything has.
func (l *localDevice) receive(now time.Duration) bool {
	worked := false
	for i := len(l.polled) - 1; i >= 0; i-- { // a channel may end
		if l.polled[i].receive(now) {
			worked = true
		}
	}
	return worked
}

// flush shows the peers what was sent.
func (l *localDevice) flush() {
	for _, p := range l.polled {
		p.channel.Flush()
	}
}

// await asks to be woken when something comes. It reports whether nothing has come yet.
func (l *localDevice) await() bool {
	none := true
	l.seen = l.device.main.polls.Load()
	for _, p := range l.polled {
		if !p.channel.Await() {
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
	for {
		select {
		case <-l.wakes:
		case <-l.ctx.Done():
			return
		}
		for quiet := 0; ; {
			more, polled := l.round(&quiet)
			if !more {
				break
			}
			if !polled {
				continue
			}
			before := l.device.main.polls.Load()
			timer.Reset(pollerGrace)
			select {
			case <-timer.C:
			case <-l.sleeps:
				continue
			case <-l.ctx.Done():
				return
			}
			if l.device.main.polls.Load() == before {
				l.takeOver(before)
			}
		}
	}
}

// round is a turn of work. It reports whether there may be more to do, and whether programs
// have polled since this end last asked to be woken, and none of them is about to sleep.
func (l *localDevice) round(quiet *int) (more, polled bool) {
	d := l.device
	d.main.mu.Lock()
	defer d.main.mu.Unlock()
	switch {
	case !l.on:
		return false, false
	case d.main.polls.Load() != l.seen && !d.main.asleep.Load():
		return true, true
	}
	if *quiet++; d.main.progress(d.now(), nil) {
		*quiet = 0
	}
	if *quiet < idleRounds {
		return true, false
	}
	*quiet = 0
	return !l.await(), false
}

// takeOver has the worker work for programs that have not polled since polls was that.
func (l *localDevice) takeOver(polls uint64) {
	l.device.main.mu.Lock()
	l.seen = polls
	l.device.main.mu.Unlock()
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

// off ends all channels, and has no others made. It returns what waits for those that are
// being made, to be called without the lock.
func (l *localDevice) off() (wait func()) {
	if !l.on {
		return func() {}
	}
	l.on = false
	l.cancel()
	for len(l.polled) > 0 {
		l.polled[len(l.polled)-1].end(net.ErrClosed)
	}
	return func() {
		for _, listener := range l.listeners {
			listener.Close()
		}
		l.dialling.Wait()
	}
}
