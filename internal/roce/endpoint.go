package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/link"
	"github.com/verbena-rdma/verbena/internal/roce/transport"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table, with a goroutine that
// makes progress while no program does.
type endpoint struct {
	device    *Device
	socket    *link.Socket
	faults    *faultInjector // nil: none
	index     int
	users     int           // queue pairs that its goroutine works for
	receivers int           // those of them that take packets from the socket
	window    int           // bytes under way that a peer like us can take
	wakesAt   time.Duration // when its goroutine wakes by itself; zero: it does not wait

	// The last packet, and the queue pair that it was for.
	packet wire.Packet
	header [transport.GRHLen]byte
	last   *queuePair

	// Of the goroutine alone.
	seen  uint64 // polls of programs up to the last look
	timer *time.Timer

	resume chan struct{} // ends a pause of the goroutine
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
	e := &endpoint{device: d, socket: socket, index: index, resume: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
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
		e.faults = newFaultInjector(f, e.index)
	}
}

// receive handles the packets that have arrived and reports whether there were
// any.
func (e *endpoint) receive(now time.Duration) bool {
	datagrams, err := e.socket.Receive()
	if err != nil {
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("receive")
	}
	if peers := e.socket.Unreachable(); len(peers) > 0 {
		e.device.unreachable.note(e, peers)
	}
	if e.faults == nil {
		for i := range datagrams {
			e.handle(&datagrams[i], now)
		}
		return len(datagrams) > 0
	}
	for i := range datagrams {
		e.faults.pass(datagrams[i], now, e.deliver)
	}
	e.faults.release(now, false, e.deliver)
	e.noteDeadline()
	return len(datagrams) > 0
}

func (e *endpoint) deliver(d link.Datagram) { e.handle(&d, e.device.now()) }

// noteDeadline notes when held packets are due.
func (e *endpoint) noteDeadline() {
	if e.faults == nil {
		return
	}
	if at := e.faults.deadline(); at != 0 {
		e.device.noteDeadline(at)
	}
}

// handle takes one packet.
func (e *endpoint) handle(dg *link.Datagram, now time.Duration) {
	d, p := e.device, &e.packet
	if p.Parse(dg.Data) != nil {
		d.drops.malformed++
		return
	}
	if p.DestQP == managementQPN && d.services != nil {
		d.services.handle(e, dg, now)
		return
	}
	q := e.last
	if q == nil || q.num != p.DestQP {
		if q = d.queuePairs[p.DestQP]; q == nil {
			d.drops.wrongPeer++
			return
		}
		e.last = q
	}
	var flow *wire.Flow
	if q.path != nil && p.PKey&0x7fff == 0x7fff {
		flow = q.path.flowFrom(e, dg.Src)
	}
	if flow == nil {
		d.drops.wrongPeer++
		return
	}
	if !flow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.drops.badICRC++
		return
	}
	d.counters.ReceivedPackets++
	if d.capture != nil {
		d.capture.packet(dg.Src, e.socket.Addr(), uint16(dg.Segment), now, dg.Data)
	}
	switch q.init.Type {
	case verbs.UD:
		putGRH(&e.header, dg.Src.Addr(), e.socket.Addr().Addr(), len(dg.Data))
		q.transport.ReceiveDatagram(p, &e.header)
	case verbs.UC:
		q.transport.Receive(p, now)
	default:
		q.transport.Receive(p, now)
		d.activate(q) // it may have something to answer
	}
}

const (
	// pollerGrace is how long the goroutine leaves the device to a program that
	// polls it. A packet may lie as long when the program stops polling without
	// having armed a completion queue.
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
		e.wakesAt = deadline
		if deadline == 0 {
			e.wakesAt = never
		}
		idle := d.ready.empty()
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
	return e.device.polls.Load() != e.seen && !e.device.asleep.Load()
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

// endPause has the goroutine make progress at once.
func (e *endpoint) endPause() {
	select {
	case e.resume <- struct{}{}:
	default:
	}
}
