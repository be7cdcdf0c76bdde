package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/link"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table.
type endpoint struct {
	device *Device
	socket *link.Socket
	faults *faultyPath // nil: none
	index  int
	users  int           // queue pairs
	takers int           // those of them that take packets from the socket
	window int           // bytes under way that a peer like us can take
	armed  time.Duration // when its goroutine wakes by itself; zero: it does not wait

	// Of the goroutine alone.
	seen  uint64 // polls of programs up to the last look
	timer *time.Timer
	kick  chan struct{}
}

func openEndpoint(d *Device, index int, addr netip.AddrPort) (*endpoint, error) {
	cfg := link.Config{
		Addr: addr, Interface: d.cfg.Interface,
		DisableSegmentation: d.cfg.DisableSegmentation,
		DisableCoalescing:   d.cfg.DisableCoalescing,
		DisableBatch:        d.cfg.DisableBatch,
	}
	anyPort := addr.Port() == 0
	if anyPort {
		cfg.Addr = netip.AddrPortFrom(addr.Addr(), wire.UDPPort)
	}
	socket, err := link.Listen(cfg)
	if anyPort && errors.Is(err, syscall.EADDRINUSE) {
		cfg.Addr = addr
		socket, err = link.Listen(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("GID index %d: %w", index, err)
	}
	e := &endpoint{device: d, socket: socket, index: index, kick: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	e.timer.Stop()
	// The kernel charges a buffer for more than the payload, at worst about
	// twice as much.
	e.window = min(max(socket.Features().ReceiveBuffer/4, minimumWindow), maximumWindow)
	e.setFaults(d.cfg.Faults, 0)
	return e, nil
}

func (e *endpoint) setFaults(f Faults, now time.Duration) {
	if e.faults != nil {
		for i := range e.faults.held {
			e.faults.held[i].due = now
		}
		e.faults.release(now, false, e.deliver)
	}
	e.faults = nil
	if f.any() {
		e.faults = newFaultyPath(f, e.index)
	}
}

// receive handles the packets that have arrived and reports whether there were
// any.
func (e *endpoint) receive(now time.Duration) bool {
	datagrams, err := e.socket.Receive()
	if err != nil {
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("receive")
	}
	if e.faults == nil {
		for i := range datagrams {
			e.device.handle(e, &datagrams[i], now)
		}
		return len(datagrams) > 0
	}
	for i := range datagrams {
		e.faults.pass(datagrams[i], now, e.deliver)
	}
	e.faults.release(now, false, e.deliver)
	if at := e.faults.deadline(); at != 0 {
		e.device.noteDeadline(at)
	}
	return len(datagrams) > 0
}

func (e *endpoint) deliver(d link.Datagram) { e.device.handle(e, &d, e.device.now()) }

const (
	// pollerGrace is how long the endpoint's goroutine leaves a device alone
	// that a program polls: so long a packet may lie when the program stops
	// polling without saying so.
	pollerGrace = time.Millisecond
	// idleRounds is how often the goroutine looks at the socket again before it
	// waits there.
	idleRounds = 2
)

// run makes progress while no program does.
func (e *endpoint) run() {
	d := e.device
	defer d.running.Done()
	defer e.timer.Stop()
	for {
		d.mu.Lock()
		deadline := d.deadline
		e.armed = deadline
		if deadline == 0 {
			e.armed = never
		}
		idle := len(d.busy) == 0
		used := e.users > 0
		d.mu.Unlock()
		if idle {
			var at time.Time
			if deadline != 0 {
				at = d.base.Add(deadline)
			}
			if err := e.socket.Wait(at); err != nil {
				d.fatal(err)
				return
			}
		}
		if used && e.polled() {
			e.seen = d.polls.Load()
			if e.pause() {
				e.seen = d.polls.Load()
			}
			continue
		}
		for quiet := 0; quiet < idleRounds && !(used && e.polled()); quiet++ {
			d.mu.Lock()
			closed := d.closed
			worked := d.progress(d.now(), e)
			used = e.users > 0
			d.mu.Unlock()
			if closed {
				return
			}
			if worked {
				quiet = 0
			}
		}
	}
}

// fatal tells that the device has lost a socket, unless it has closed it.
func (d *Device) fatal(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.Error().Err(err).Str("device", d.cfg.Name).Msg("waiting for packets")
	d.tell(verbs.Event{Type: verbs.EventDeviceFatal})
}

// polled reports whether programs have polled since the last look, and none of
// them said that it goes to sleep. They look only at endpoints that are used.
func (e *endpoint) polled() bool {
	return e.device.polls.Load() != e.seen && !e.device.asleep.Load()
}

// pause leaves the device to the program that polls it. It reports true when
// the program has said that it goes to sleep.
func (e *endpoint) pause() bool {
	e.timer.Reset(pollerGrace)
	select {
	case <-e.timer.C:
		return false
	case <-e.kick:
		e.timer.Stop()
		return true
	}
}

// takeOver tells the endpoint's goroutine that no program polls any more.
func (e *endpoint) takeOver() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}
