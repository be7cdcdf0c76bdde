package roce

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/spin"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table, with a goroutine that
// makes progress while no program does.
type endpoint struct {
	device    *Device
	shard     *shard
	socket    *link.Socket
	entry     *admission.Entry // one for the endpoints of all shards with this index
	faults    *faults.Injector // nil: none
	index     int
	users     int           // queue pairs that its goroutine works for
	receivers int           // those of them that take packets from the socket
	listeners int           // queue pairs of SRD, whose packets come by any endpoint
	busyUntil time.Duration // SRD counts as busy until then
	headers   int           // how many want the IP header of packets
	window    int           // bytes under way that a peer like us can take
	wakesAt   time.Duration // when its goroutine wakes by itself; zero: it does not wait

	// The last packet, and the queue pair that it was for.
	packet wire.Packet
	header [verbs.GRHLen]byte
	last   *queuePair
	// unknown is the flow of the last packet from a device that no queue pair is connected to:
	// a message to queue pair 1, or a packet of SRD.
	unknown wire.Flow

	// Of the goroutine alone.
	seen  uint64 // polls of programs up to the last look
	tries int    // to take the lock beside programs that poll, since it was taken
	timer *time.Timer

	resume chan struct{} // ends a pause of the goroutine
}

func openEndpoint(s *shard, index int, addr netip.AddrPort) (*endpoint, error) {
	d := s.device
	cfg := link.Config{
		Addr: addr, Interface: d.cfg.Interface,
		DisableSegmentation: d.cfg.DisableSegmentation,
		DisableCoalescing:   d.cfg.DisableCoalescing,
		DisableBatch:        d.cfg.DisableBatch,
	}
	anyPort := addr.Port() == 0
	var socket *link.Socket
	var err error
	switch port := addr.Port(); {
	case anyPort || port == wire.UDPPort:
		cfg.Addr = netip.AddrPortFrom(addr.Addr(), wire.UDPPort)
		socket, err = listenAtStandardPort(cfg)
	case port >= admission.FirstSendPort:
		err = fmt.Errorf("UDP port %d: devices send from the ports from %d on; choose one below: %w", port, admission.FirstSendPort, verbs.ErrInvalid)
	default:
		cfg.Exclusive = true
		socket, err = link.Listen(cfg)
	}
	if anyPort && errors.Is(err, syscall.EADDRINUSE) {
		socket, err = listenElsewhere(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("GID index %d: %w", index, err)
	}
	entry := d.admission.Entry(socket.Addr(), func(f link.Filter) error { return d.setFilter(index, f) })
	return newEndpoint(s, index, socket, entry), nil
}

func newEndpoint(s *shard, index int, socket *link.Socket, entry *admission.Entry) *endpoint {
	e := &endpoint{device: s.device, shard: s, socket: socket, entry: entry, index: index, resume: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	e.timer.Stop()
	// The kernel charges a buffer for more than the payload, at worst about
	// twice as much.
	e.window = min(max(socket.Features().ReceiveBuffer/4, minimumWindow), maximumWindow)
	e.faults = faults.New(&s.device.faults, e.faultStream())
	return e
}

func listenAtStandardPort(cfg link.Config) (*link.Socket, error) {
	cfg.SendPorts = link.PortRange{First: admission.FirstSendPort, Last: math.MaxUint16}
	return link.Listen(cfg)
}

// listenElsewhere takes a port below admission.FirstEntropyPort, by which receivers of datagrams
// know where to answer.
func listenElsewhere(cfg link.Config) (socket *link.Socket, err error) {
	const first, attempts = 1 << 15, 64
	cfg.Exclusive = true
	for range attempts {
		port := first + uint16(admission.Random()%(admission.FirstEntropyPort-first))
		cfg.Addr = netip.AddrPortFrom(cfg.Addr.Addr(), port)
		if socket, err = link.Listen(cfg); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return socket, err
}

// setFilter filters the packets for an entry at the sockets of all shards.
func (d *Device) setFilter(index int, f link.Filter) error {
	var errs []error
	for _, s := range d.mu.list {
		errs = append(errs, s.endpoints[index].socket.SetFilter(f))
		f.Ignored = nil // these messages come to the first
	}
	return errors.Join(errs...)
}

// wantHeaders asks for the fields of the IP header of packets that the system shows, until
// releaseHeaders is called as often.
func (e *endpoint) wantHeaders() {
	if e.headers++; e.headers == 1 {
		e.receiveHeaders(true)
	}
}

func (e *endpoint) releaseHeaders() {
	if e.headers--; e.headers == 0 {
		e.receiveHeaders(false)
	}
}

func (e *endpoint) receiveHeaders(on bool) {
	if err := e.socket.ReceiveHeaders(on); err != nil {
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("headers of datagrams have defaults")
	}
}

// setFaults takes the faults of packets from an address that the device has now, or its own if it is
// none. What was held of these packets arrives.
func (e *endpoint) setFaults(peer netip.Addr) {
	s := &e.device.faults
	if e.faults == nil {
		e.faults = faults.New(s, e.faultStream())
		return
	}
	for _, d := range e.faults.Changed(s, peer, e.faultStream()) {
		e.arrived(d)
	}
	if !e.faults.Any() {
		e.faults = nil
	}
}

// faultStream tells the draws of the endpoint from those of others with the same seed.
func (e *endpoint) faultStream() int { return e.shard.index<<16 | e.index }

// flush sends the packets that the socket has collected, and returns the first error.
func (e *endpoint) flush() error {
	dropped, err := e.socket.Flush()
	if dropped > 0 || err != nil {
		e.noteDropped(dropped, err)
	}
	return err
}

func (e *endpoint) noteDropped(n int, err error) {
	e.shard.drops.send += uint64(n)
	if err != nil {
		e.device.log.Debug().Err(err).Int("dropped", n).Msg("send")
	}
}

// pollerGrace is how long the goroutine leaves the device to a program that polls it. A
// packet may lie as long when the program stops polling without having armed a completion
// queue.
const pollerGrace = time.Millisecond

// busyTime is how long programs that poll look at an endpoint after a packet of SRD has
// come there.
const busyTime = 100 * time.Millisecond

// listens reports whether programs that poll look at the endpoint for queue pairs of SRD.
// A look costs a system call, and their packets hardly ever come by all endpoints of the
// device: the others are left to their own goroutines.
func (e *endpoint) listens(now time.Duration) bool {
	return e.listeners > 0 && (e.device.busy == e || now < e.busyUntil)
}

// polledFor reports whether programs that poll look at the endpoint.
func (e *endpoint) polledFor(now time.Duration) bool { return e.receivers > 0 || e.listens(now) }

// inUse reports whether the endpoint is left to programs while they poll.
func (e *endpoint) inUse(now time.Duration) bool { return e.users > 0 || e.listens(now) }

// wakes reports whether the endpoint's goroutine is to be woken for what is due.
func (e *endpoint) wakes() bool { return e.users+e.listeners > 0 }

// run makes progress while no program does.
func (e *endpoint) run() {
	d, s := e.device, e.shard
	defer d.running.Done()
	defer e.timer.Stop()
	spinning := spin.New(d.cfg.Spin)
	used, paused := false, false
	for {
		if !e.lockBeside(used && e.polled()) {
			e.leave()
			paused = true
			continue
		}
		now := d.now()
		if paused && !d.closed && !e.polledFor(now) {
			s.progress(now, e) // programs do not look here: queue pairs have other paths now, and packets may still be under way
		}
		deadline := s.deadline
		e.wakesAt = deadline
		if deadline == 0 {
			e.wakesAt = never
		}
		idle := !s.sendsMore() && !s.inbox.waiting.Load()
		used = e.inUse(now)
		s.mu.Unlock()
		if idle {
			var at time.Time
			if deadline != 0 {
				at = d.base.Add(deadline)
			}
			if err := e.socket.Wait(at); err != nil {
				d.fatal(err)
				return
			}
			spinning.Woken(d.now())
		}
		if paused = used && e.polled(); paused {
			e.leave()
			continue
		}
		for more := true; more && !(used && e.polled()); {
			s.mu.Lock()
			closed := d.closed
			now := d.now()
			worked := s.progress(now, e)
			used = e.inUse(now)
			s.mu.Unlock()
			if closed {
				return
			}
			if more = spinning.PollsOn(now, worked); more && !worked {
				spinning.Yield()
			}
		}
	}
}

// fatal reports that the device has lost a socket, unless it has closed it.
func (d *Device) fatal(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.Error().Err(err).Str("device", d.cfg.Name).Msg("waiting for packets")
	d.report(verbs.Event{Type: verbs.EventDeviceFatal})
}

// polled reports whether programs have polled since the last look, and none of
// them has armed a completion queue since, to sleep. Only endpoints that are used
// are left to them.
func (e *endpoint) polled() bool {
	return e.shard.polls.Load() != e.seen && !e.shard.asleep.Load()
}

// maxTries is how often in a row a goroutine of the device tries to take the lock, before it waits.
const maxTries = 3

// lockBeside takes the shard's lock, and reports whether it has. Beside programs that poll it waits
// only if it has tried often enough: a program that gives back a lock with a waiter wakes a thread,
// and may have to wait itself (starvation mode of sync.Mutex).
func (e *endpoint) lockBeside(polled bool) bool {
	if polled && e.tries < maxTries && !e.shard.mu.TryLock() {
		e.tries++
		return false
	} else if !polled || e.tries >= maxTries {
		e.shard.mu.Lock()
	}
	e.tries = 0
	return true
}

// leave leaves the device to programs for a while.
func (e *endpoint) leave() {
	e.seen = e.shard.polls.Load()
	if e.pause() {
		e.seen = e.shard.polls.Load()
	}
}

// pause leaves the device to the program that polls it, for pollerGrace. It
// reports true if the program has armed a completion queue before.
func (e *endpoint) pause() bool {
	e.timer.Reset(pollerGrace)
	select {
	case <-e.timer.C:
		return false
	case <-e.resume:
		e.timer.Stop()
		return true
	}
}

// endPause makes the goroutine go on at once.
func (e *endpoint) endPause() {
	select {
	case e.resume <- struct{}{}:
	default:
	}
}
