package roce

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table, with a goroutine that
// makes progress while no program does.
type endpoint struct {
	device    *Device
	shard     *shard
	socket    *link.Socket
	filter    *socketFilter  // one for the endpoints of all shards with this index
	faults    *faultInjector // nil: none
	index     int
	users     int           // queue pairs that its goroutine works for
	receivers int           // those of them that take packets from the socket
	listeners int           // queue pairs of SRD, whose packets come by any endpoint
	busyUntil time.Duration // a packet of SRD has come lately
	headers   int           // who wants the IP header of packets
	window    int           // bytes under way that a peer like us can take
	wakesAt   time.Duration // when its goroutine wakes by itself; zero: it does not wait

	// The last packet, and the queue pair that it was for.
	packet wire.Packet
	header [verbs.GRHLen]byte
	last   *queuePair
	// stranger is the flow of the last packet from where no path leads: of SRD from a device
	// that is not known, or a notification of congestion.
	stranger wire.Flow

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
	case port >= firstSendPort:
		err = fmt.Errorf("UDP port %d: devices send from the ports from %d on; choose one below: %w", port, firstSendPort, verbs.ErrInvalid)
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
	return newEndpoint(s, index, socket, newSocketFilter(d, index)), nil
}

func newEndpoint(s *shard, index int, socket *link.Socket, filter *socketFilter) *endpoint {
	e := &endpoint{device: s.device, shard: s, socket: socket, filter: filter, index: index, resume: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	e.timer.Stop()
	// The kernel charges a buffer for more than the payload, at worst about
	// twice as much.
	e.window = min(max(socket.Features().ReceiveBuffer/4, minimumWindow), maximumWindow)
	e.faults = newFaultInjector(&s.device.faults, e.faultStream())
	return e
}

// Which port a device sends from, and what its peers make of that. Nobody else can send from
// it, since it is bound at all addresses (link.Socket.Source).
//
//   - Several devices of a host have UDP port 4791, each at its own address. So none of them
//     sends from there: each has another port to send from, firstSendPort or above.
//   - A device with another port sends from it.
//
// So the source of a packet tells where its device listens. Other implementations listen at
// 4791, and send from wherever they like: annex A17.4.5 has them use ports from
// firstEntropyPort on, to spread their packets over paths.
const (
	firstEntropyPort = 49152
	// firstSendPort lies above what Linux gives to sockets that ask for any port.
	firstSendPort = 61000
)

func listenAtStandardPort(cfg link.Config) (*link.Socket, error) {
	cfg.SendPorts = link.PortRange{First: firstSendPort, Last: math.MaxUint16}
	return link.Listen(cfg)
}

// listenElsewhere takes a port below firstEntropyPort, by which receivers of datagrams
// know where to answer.
func listenElsewhere(cfg link.Config) (socket *link.Socket, err error) {
	const first, attempts = 1 << 15, 64
	cfg.Exclusive = true
	for range attempts {
		port := first + uint16(randomUint32()%(firstEntropyPort-first))
		cfg.Addr = netip.AddrPortFrom(cfg.Addr.Addr(), port)
		if socket, err = link.Listen(cfg); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return socket, err
}

// replyPort is the port by which the sender of a datagram can be answered, from the one
// that it came from; zero stands for that of RoCEv2.
func replyPort(source uint16) uint16 {
	if source == wire.UDPPort || source >= firstEntropyPort {
		return 0
	}
	return source
}

// answerAt is where the sender of a datagram can be answered.
func answerAt(source netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(source.Addr(), cmp.Or(replyPort(source.Port()), wire.UDPPort))
}

// deviceAt is where a software device listens, from where its packets come from.
func deviceAt(source netip.AddrPort) netip.AddrPort {
	if source.Port() >= firstSendPort {
		return netip.AddrPortFrom(source.Addr(), wire.UDPPort)
	}
	return source
}

// wantHeaders has packets come with the fields of their IP header, as far as the system
// shows them, until releaseHeaders is called as often.
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
		e.faults = newFaultInjector(s, e.faultStream())
		return
	}
	for _, d := range e.faults.changed(s, peer, e.faultStream()) {
		e.deliver(d)
	}
	if !e.faults.any() {
		e.faults = nil
	}
}

// faultStream tells the draws of the endpoint from those of others with the same seed.
func (e *endpoint) faultStream() int { return e.shard.index<<16 | e.index }

// receive handles the packets that have arrived and reports whether there were
// any.
func (e *endpoint) receive(now time.Duration) bool {
	datagrams, err := e.socket.Receive()
	if err != nil {
		e.device.log.Debug().Err(err).Stringer("address", e.socket.Addr()).Msg("receive")
	}
	if peers := e.socket.Unreachable(); len(peers) > 0 {
		e.shard.unreachable.note(e, peers)
		e.shard.passReports(e, peers)
	}
	for i := range datagrams {
		if i+1 < len(datagrams) && acknowledgementFollows(datagrams[i:]) {
			datagrams[i], datagrams[i+1] = datagrams[i+1], datagrams[i]
		}
		if e.faults == nil {
			e.handle(&datagrams[i], now)
		} else {
			e.faults.pass(datagrams[i], now, e.deliver)
		}
	}
	if e.faults == nil {
		return len(datagrams) > 0
	}
	e.faults.release(now, e.deliver)
	e.noteDeadline()
	return len(datagrams) > 0
}

// acknowledgementFollows reports whether the first datagram is a message and the second an
// acknowledgement for the same queue pair, as a device like this one sends them (delayedAck). It
// is taken first, so that a request completes before the reply to it. Their order does not matter
// otherwise: the two directions of a connection have sequence numbers of their own.
func acknowledgementFollows(datagrams []link.Datagram) bool {
	a, b := &datagrams[0], &datagrams[1]
	return wire.IsRequestThenAck(a.Data, b.Data) && a.Src == b.Src
}

func (e *endpoint) deliver(d link.Datagram) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	e.handle(&d, e.device.now())
}

// noteDeadline notes when held packets are due.
func (e *endpoint) noteDeadline() {
	if e.faults == nil {
		return
	}
	if at := e.faults.deadline(); at != 0 {
		e.shard.noteDeadline(at)
	}
}

// handle takes one packet.
func (e *endpoint) handle(dg *link.Datagram, now time.Duration) {
	d, s, p := e.device, e.shard, &e.packet
	// A request of a reliable connection with an unknown opcode is for its queue pair to refuse.
	if err := p.Parse(dg.Data); err != nil && (err != wire.ErrOpcode || p.Opcode.Service() != wire.ServiceRC) {
		s.drops.malformed++
		e.refused(dg.Src, noQP, now)
		return
	}
	if dg.Group.IsValid() {
		e.handleGroup(dg)
		return
	}
	q := (*queuePair)(nil)
	switch {
	case p.Opcode.Service() == wire.ServiceSRD:
		if s == d.main {
			d.handleSRD(e, dg, p, now)
			return
		}
	case p.DestQP == managementQPN && d.services != nil:
		if s == d.main {
			d.services.handle(e, dg, now)
			return
		}
	default:
		if q = e.find(p.DestQP); q == nil {
			s.drops.wrongPeer++
			e.refused(dg.Src, p.DestQP, now)
			return
		}
	}
	if owner := s.ownerOf(q); owner != s {
		owner.take(stray{endpoint: e.index, datagram: *dg})
		return
	}
	flow, notification := (*wire.Flow)(nil), false
	if inDefaultPartition(p.PKey) {
		if notification = p.Opcode == wire.CNP && q.takesNotifications(e, dg.Src.Addr()); notification {
			// Adapters send these from any port, and nothing is learned from them.
			e.stranger = wire.NewFlow(dg.Src, e.socket.Addr())
			flow = &e.stranger
		} else {
			flow = q.flowFrom(e, dg.Src, now)
		}
	}
	if flow == nil {
		s.drops.refuse(q, e, dg.Src, p)
		e.refused(dg.Src, p.DestQP, now)
		return
	}
	if !flow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		s.drops.badICRC++
		return
	}
	if q.learning != nil && !notification {
		if !q.transport.Plausible(p, q.learning.behind) {
			s.drops.wrongSource++
			return
		}
		q.learning.held, q.learning.learned, q.learning = true, true, nil
	}
	if q.init.Type == verbs.UD && !d.senders.mayBe(dg.Src, p.DETH.SrcQP) {
		s.drops.wrongSource++
		return
	}
	if !notification {
		q.heardAt = now
	}
	s.counters.ReceivedPackets++
	if d.capture != nil {
		d.capture.packet(dg.Src, e.socket.Addr(), dg.Header, uint16(dg.Segment), now, dg.Data)
	}
	if dg.Header.TrafficClass&ecnMask == congestionExperienced {
		s.marked(q, p, now)
	}
	switch q.init.Type {
	case verbs.UD:
		putGRH(&e.header, dg.Src.Addr(), e.socket.Addr().Addr(), dg.Header, len(dg.Data))
		q.transport.ReceiveDatagram(p, &e.header, replyPort(dg.Src.Port()))
	case verbs.UC:
		q.transport.Receive(p, now)
	default:
		q.transport.Receive(p, now)
		s.answerSoon(q, now)
	}
}

// refuse counts a packet for a queue pair that takes none from there.
func (d *drops) refuse(q *queuePair, e *endpoint, source netip.AddrPort, p *wire.Packet) {
	if u := networkPath(q.path); u != nil && u.isPeer(e, source.Addr()) && inDefaultPartition(p.PKey) {
		d.wrongSource++
		return
	}
	d.wrongPeer++
}

// noQP stands for the queue pair of a malformed packet: none has the number.
const noQP = 0

// refused notes that a packet was refused for its source or queue pair, or since it is malformed.
func (e *endpoint) refused(source netip.AddrPort, qpn uint32, now time.Duration) {
	if until := e.filter.refused(source, qpn, now); until != 0 {
		e.shard.noteDeadline(until)
	}
}

// inDefaultPartition reports whether a P_Key is of the partition that all ports are in.
func inDefaultPartition(key uint16) bool { return key&0x7fff == 0x7fff }

// find returns the queue pair with that number, or nil. Packets in a row are mostly for one.
func (e *endpoint) find(qpn uint32) *queuePair {
	if e.last == nil || e.last.num != qpn {
		e.last = e.device.queuePairs[qpn]
	}
	return e.last
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
	spin := newIdleSpin(d.cfg.Spin)
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
		idle := !s.sendsMore() && !s.strays.waiting.Load()
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
			spin.woken(d.now())
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
			if more = spin.pollsOn(now, worked); more && !worked {
				spin.yield()
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
// only if it has tried often enough: who gives back a lock that somebody waits for has a thread
// woken, and may have to wait itself (starvation mode of sync.Mutex).
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

// endPause has the goroutine make progress at once.
func (e *endpoint) endPause() {
	select {
	case e.resume <- struct{}{}:
	default:
	}
}
