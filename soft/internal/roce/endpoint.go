package roce

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/spin"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table, with a goroutine that makes
// progress while no program polls.
type endpoint struct {
	device         *Device
	shard          *shard
	socket         *link.Socket
	entry          *admission.Entry // shared with the endpoints of other shards that have this index
	faults         *faults.Injector // nil: none
	index          int
	users          int           // queue pairs that the goroutine works for
	receivers      int           // users that receive packets from the socket
	srdQueuePairs  int           // SRD queue pairs, which receive at every endpoint
	srdPolledUntil time.Duration // programs that poll check it for SRD packets until then
	managed        bool          // management messages arrive
	checked        time.Duration // when it was last checked for packets
	headers        int           // users that need the IP header of packets
	window         int           // bytes in flight that a peer with buffers like ours can hold
	wakesAt        time.Duration // when the goroutine wakes by itself; zero: it does not wait

	// The last packet, and the queue pair that it was for.
	packet wire.Packet
	header [verbs.GRHLen]byte
	last   *queuePair
	// unconnectedFlow is the flow of the last packet from a device without a connected queue
	// pair: a message to queue pair 1, or an SRD packet.
	unconnectedFlow wire.Flow

	// Used by the goroutine alone.
	pollsSeen    uint64 // shard.polls at the last look
	lockAttempts int    // failed attempts in a row to take the lock
	atOnce       bool   // the last wait at the socket followed a pause, and ended at once
	overdue      int    // times in a row that a packet lay for a pause
	unattended   bool   // programs poll and leave packets lying: the goroutine takes them
	inVain       int    // times in a row that the goroutine was then woken for nothing
	timer        *time.Timer

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
		socket, err = d.listenAtStandardPort(cfg)
	case port >= admission.FirstSendPort:
		err = fmt.Errorf("UDP port %d is reserved, since devices send from the ports from %d on; choose a lower one: %w", port, admission.FirstSendPort, verbs.ErrInvalid)
	default:
		cfg.Exclusive = true
		socket, err = d.net.Listen(cfg)
	}
	if anyPort && errors.Is(err, syscall.EADDRINUSE) {
		socket, err = d.listenAtOtherPort(cfg)
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
	// The kernel charges a buffer for more than the payload, at worst for about twice as much.
	e.window = min(max(socket.Features().ReceiveBuffer/4, minimumWindow), maximumWindow)
	e.faults = faults.New(&s.device.mu.faults, e.faultStream())
	return e
}

func (d *Device) listenAtStandardPort(cfg link.Config) (*link.Socket, error) {
	cfg.SendPorts = link.PortRange{First: admission.FirstSendPort, Last: math.MaxUint16}
	return d.net.Listen(cfg)
}

// listenAtOtherPort takes a port below admission.FirstEntropyPort: receivers of datagrams reply
// to such a source port.
func (d *Device) listenAtOtherPort(cfg link.Config) (socket *link.Socket, err error) {
	const first, attempts = 1 << 15, 64
	cfg.Exclusive = true
	for range attempts {
		port := first + uint16(d.random()%(admission.FirstEntropyPort-first))
		cfg.Addr = netip.AddrPortFrom(cfg.Addr.Addr(), port)
		if socket, err = d.net.Listen(cfg); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return socket, err
}

// setFilter installs a filter for the packets of an entry at the sockets of all shards.
func (d *Device) setFilter(index int, f link.Filter) error {
	var errs []error
	for _, s := range d.mu.list {
		errs = append(errs, s.endpoints[index].socket.SetFilter(f))
		f.Ignored = nil // these messages go to the first shard
	}
	return errors.Join(errs...)
}

// wantHeaders makes the socket report IP header fields, as far as the system shows them. Each
// call needs a call of releaseHeaders.
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
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("cannot read the IP headers of received packets; using defaults")
	}
}

// setFaults applies the device's current faults for packets from peer, or the device's own
// faults if peer is not valid. Packets that the old faults held back are delivered.
func (e *endpoint) setFaults(peer netip.Addr) {
	s := &e.device.mu.faults
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

// faultStream distinguishes the random draws of this endpoint from those of others with the
// same seed.
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
	e.shard.mu.drops.send += uint64(n)
	if err != nil {
		e.device.log.Debug().Err(err).Int("dropped", n).Msg("packets were dropped while sending")
	}
}

// pollerGrace is how long the goroutine leaves the device to a program that polls. A packet
// may wait as long if the program stops polling without arming a completion queue.
const pollerGrace = time.Millisecond

// srdPollTime is how long programs that poll check an endpoint after an SRD packet has arrived
// there.
const srdPollTime = 100 * time.Millisecond

// polledForSRD reports whether programs that poll check the endpoint for SRD packets. A check costs
// a system call, and SRD packets hardly ever arrive at all endpoints of the device. The others
// are left to their own goroutines.
func (e *endpoint) polledForSRD(now time.Duration) bool {
	return e.srdQueuePairs > 0 && (e.device.main.lastSRDEndpoint == e || now < e.srdPolledUntil)
}

// managementInterval is how often programs that poll check an endpoint to which only management
// messages come. A check is a system call, which takes longer than to handle a message that came
// through shared memory.
const managementInterval = 100 * time.Microsecond

// polledForManagement reports whether programs that poll check the endpoint for management messages.
func (e *endpoint) polledForManagement(now time.Duration) bool {
	return e.managed && now-e.checked >= managementInterval
}

// polledFor reports whether programs that poll check the endpoint.
func (e *endpoint) polledFor(now time.Duration) bool {
	return e.receivers > 0 || e.polledForSRD(now) || e.polledForManagement(now)
}

// inUse reports whether the endpoint is left to programs while they poll.
func (e *endpoint) inUse(now time.Duration) bool { return e.users > 0 || e.polledForSRD(now) }

// wakes reports whether the endpoint's goroutine is woken for work that is due.
func (e *endpoint) wakes() bool { return e.users+e.srdQueuePairs > 0 }

// run makes progress while no program polls.
func (e *endpoint) run() {
	d, s := e.device, e.shard
	defer d.running.Done()
	defer e.timer.Stop()
	spinning := spin.New(d.cfg.Spin)
	used, paused := false, false
	for {
		if !e.tryLock(used && e.polled()) {
			e.yieldToPrograms()
			paused = true
			continue
		}
		now := d.now()
		if paused && !d.mu.closed && !e.polledFor(now) {
			s.progress(now, e) // its queue pairs may have other paths now, but packets may still be in flight
		}
		deadline := s.mu.deadline
		e.wakesAt = deadline
		if deadline == 0 {
			e.wakesAt = never
		}
		idle := !s.readyToSend() && !s.handoffs.waiting.Load()
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
			woken := d.now()
			spinning.Woken(woken)
			e.atOnce = paused && woken-now < immediately
		}
		if paused = used && e.polled(); paused {
			e.yieldToPrograms()
			continue
		}
		first := true
		for more := true; more && !(used && e.polled()); first = false {
			s.mu.Lock()
			closed := d.mu.closed
			now := d.now()
			worked := s.progress(now, e)
			used = e.inUse(now)
			s.mu.Unlock()
			if first {
				e.noteWoken(worked)
			}
			if closed {
				return
			}
			if more = spinning.KeepPolling(now, worked); more && !worked {
				spinning.Yield()
			}
		}
	}
}

// work makes progress for a network that calls it in place of run: when a packet arrives, at the
// returned time, and after an interruption. A zero time means that there is no work by then.
func (e *endpoint) work() (next time.Time) {
	d, s := e.device, e.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.progress(d.now(), e) || s.readyToSend() || s.handoffs.waiting.Load() {
	}
	e.wakesAt = s.mu.deadline
	if s.mu.deadline == 0 {
		e.wakesAt = never
		return time.Time{}
	}
	return d.base.Add(s.mu.deadline)
}

// fatal reports the loss of a socket, unless the device has closed it.
func (d *Device) fatal(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.Error().Err(err).Str("device", d.cfg.Name).Msg("the device failed while waiting for packets")
	d.report(verbs.Event{Type: verbs.EventDeviceFatal})
}

// polled reports whether programs have polled since the last look, and none of them has armed
// a completion queue since, in order to sleep. Only endpoints in use are left to programs.
func (e *endpoint) polled() bool {
	return !e.unattended && e.shard.polls.Load() != e.pollsSeen && !e.shard.asleep.Load()
}

const (
	// immediately is longer than a wait at a socket takes where a packet lies already.
	immediately = 20 * time.Microsecond
	// maxOverdue is how many times in a row a packet may lie for pollerGrace. After that the
	// goroutine takes the packets itself.
	maxOverdue = 2
	// maxInVain is how many times in a row the goroutine may then be woken for packets that a
	// program has taken. After that it leaves them to programs again.
	maxInVain = 16
)

// noteWoken learns whether programs that poll take the packets, from whether the goroutine found
// work when it was woken. Some programs poll only for the completions of their own requests, and
// then read memory until a peer has written there.
func (e *endpoint) noteWoken(worked bool) {
	switch {
	case e.unattended && worked:
		e.inVain = 0
	case e.unattended:
		e.inVain++
		if e.inVain >= maxInVain {
			e.unattended, e.inVain, e.overdue = false, 0, 0
		}
	case !e.atOnce:
	case worked:
		e.overdue++
		e.unattended = e.overdue >= maxOverdue
	default:
		e.overdue = 0
	}
	e.atOnce = false
}

// maxLockAttempts is how many times in a row a goroutine of the device tries to take the lock
// before it waits for it.
const maxLockAttempts = 3

// tryLock takes the shard's lock, and reports whether it has. While programs poll, it waits
// only after maxLockAttempts attempts: a program that unlocks a mutex with a waiter wakes a thread,
// and may have to wait itself (starvation mode of sync.Mutex).
func (e *endpoint) tryLock(polled bool) bool {
	if polled && e.lockAttempts < maxLockAttempts && !e.shard.mu.TryLock() {
		e.lockAttempts++
		return false
	} else if !polled || e.lockAttempts >= maxLockAttempts {
		e.shard.mu.Lock()
	}
	e.lockAttempts = 0
	return true
}

// yieldToPrograms leaves the device to programs for a while.
func (e *endpoint) yieldToPrograms() {
	e.pollsSeen = e.shard.polls.Load()
	if e.pause() {
		e.pollsSeen = e.shard.polls.Load()
	}
}

// pause leaves the device to the program that polls it, for pollerGrace. It reports true if
// the program armed a completion queue in that time.
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

// endPause ends the goroutine's pause at once.
func (e *endpoint) endPause() {
	select {
	case e.resume <- struct{}{}:
	default:
	}
}
