package roce

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/sharedport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is the socket behind one entry of the GID table.
type endpoint struct {
	device         *Device
	shard          *shard
	socket         *link.Socket
	entry          *admission.Entry  // shared with the endpoints of other shards that have this index
	faults         *faults.Injector  // nil: none
	group          *sharedport.Group // that has port 4791; nil: it is not shared
	notShared      error             // why
	index          int
	receivers      int           // queue pairs that receive packets from the socket
	srdQueuePairs  int           // SRD queue pairs, which receive at every endpoint
	srdPolledUntil time.Duration // programs that poll check it for SRD packets until then
	headers        int           // users that need the IP header of packets
	window         int           // bytes in flight that a peer with buffers like ours can hold

	// The last packet, and the queue pair that it was for.
	packet wire.Packet
	header [verbs.GRHLen]byte
	last   *queuePair
	// unconnectedFlow is the flow of the last packet from a device without a connected queue
	// pair: a message to queue pair 1, or an SRD packet.
	unconnectedFlow wire.Flow
}

func openEndpoint(s *shard, index int, addr netip.AddrPort, group *sharedport.Group, notShared error) (*endpoint, error) {
	d := s.device
	cfg := link.Config{
		Addr: addr, Interface: d.cfg.Interface,
		DisableSegmentation: d.cfg.DisableSegmentation,
		DisableCoalescing:   d.cfg.DisableCoalescing,
		DisableBatch:        d.cfg.DisableBatch,
		WaitSet:             s.sockets,
	}
	anyPort := addr.Port() == 0
	var socket *link.Socket
	var err error
	switch port := addr.Port(); {
	case anyPort || port == wire.UDPPort:
		cfg.Addr = netip.AddrPortFrom(addr.Addr(), wire.UDPPort)
		switch {
		case group == nil:
			socket, err = d.listenAtStandardPort(cfg)
		case !group.HasRest(s.slot):
			err = syscall.EADDRINUSE
		default:
			if cfg.Bound, err = group.Socket(s.slot); err == nil {
				socket, err = d.listenAtStandardPort(cfg)
				cfg.Bound = 0
			}
		}
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
	e := newEndpoint(s, index, socket, entry)
	e.group, e.notShared = group, notShared
	if err := e.receiveFromSlot(); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("GID index %d: %w", index, err)
	}
	return e, nil
}

func newEndpoint(s *shard, index int, socket *link.Socket, entry *admission.Entry) *endpoint {
	e := &endpoint{device: s.device, shard: s, socket: socket, entry: entry, index: index}
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

// srdPollTime is how long programs that poll check an endpoint after an SRD packet has arrived
// there.
const srdPollTime = 100 * time.Millisecond

// polledForSRD reports whether programs that poll check the endpoint for SRD packets. A check costs
// a system call, and SRD packets hardly ever arrive at all endpoints of the device. The others
// are left to the device's goroutine.
func (e *endpoint) polledForSRD(now time.Duration) bool {
	return e.srdQueuePairs > 0 && (e.device.main.lastSRDEndpoint == e || now < e.srdPolledUntil)
}

// polledFor reports whether programs that poll check the endpoint. A check costs a system call, which
// takes longer than to handle a message that came through shared memory. Packets at other endpoints
// wake the device's goroutine while it leaves the work to programs (shard.rest); one that works looks
// at the wait set from time to time (shard.drive).
func (e *endpoint) polledFor(now time.Duration) bool {
	return e.receivers > 0 || e.polledForSRD(now)
}

// work makes progress for a network that calls it in place of run: when a packet arrives, at the
// returned time, and after an interruption. A zero time means that there is no work by then. The
// deadlines of the shard are those of its first endpoint.
func (e *endpoint) work() (next time.Time) {
	d, s := e.device, e.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.progress(d.now(), atAll) != 0 || s.readyToSend() || s.handoffs.waiting.Load() {
	}
	if e != s.endpoints[0] {
		return time.Time{}
	}
	return s.waitDeadline()
}
