package roce

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// localPath is the path of a reliable connection whose peer may be on this machine. Its
// packets go through shared memory where that is possible, and otherwise by UDP. It implements
// local.User.
type localPath struct {
	udpPath
	queuePair *queuePair
	peerShard int         // from the low bits of the peer's queue pair number
	shared    *local.Path // while it is attached
}

// maxInChannel is more packets than can be in flight through a channel. Their acknowledgements
// may be lost with it; the peer then repeats them by UDP, from a port that has to be learned.
const maxInChannel = 1 << 16

func (p *localPath) attach(t *transport.QP) {
	p.shared = p.endpoint.shard.mu.local.NewPath(p.endpoint, local.Address{Device: p.peer, Shard: p.peerShard}, t, p)
	p.udpPath.attach(t)
	p.shared.Begin()
}

func (p *localPath) detach() {
	if p.shared.Close() {
		p.endpoint.receivers++
	}
	p.udpPath.detach()
}

// ChannelUp implements local.User.
func (p *localPath) ChannelUp() {
	p.endpoint.receivers--
	p.queuePair.ack.endpoint, p.queuePair.ack.shared = nil, true
}

// ChannelDown implements local.User.
func (p *localPath) ChannelDown(shared, received bool) {
	if received {
		p.queuePair.source.AcceptRepetitions(maxInChannel)
	}
	if !shared {
		return
	}
	p.endpoint.receivers++
	t := p.queuePair.transport
	t.SetWindow(p.endpoint.window)
	t.SetCongestionControl(p.controlled())
	p.queuePair.ack.endpoint, p.queuePair.ack.shared = p.trains(), false
}

// Activate implements local.User.
func (p *localPath) Activate() { p.endpoint.shard.activate(p.queuePair) }

// Respond implements local.User.
func (p *localPath) Respond(now time.Duration) {
	p.endpoint.shard.scheduleResponse(p.queuePair, now)
}

func (p *localPath) send(t *transport.QP, now time.Duration, a allowance) (left allowance, more bool) {
	if !p.shared.Shared() {
		return p.udpPath.send(t, now, a)
	}
	a.bytes, more = p.shared.Transmit(now, a.bytes)
	return a, more
}

func (p *localPath) channel() *local.Path { return p.shared }

func (p *localPath) revoke(mem []byte) { p.shared.Revoke(mem) }

func (p *localPath) peerBehind() bool { return p.shared.PeerBehind() }

func (p *localPath) kind() verbs.Path {
	switch {
	case !p.shared.Shared():
		return verbs.PathNetwork
	case p.shared.Loop():
		return verbs.PathLoopback
	}
	return verbs.PathSharedMemory
}

// localShard implements local.Shard for a shard.
type localShard struct {
	sync.Locker
	shard *shard
}

// openLocal lets other devices of this machine find the shard. It does nothing while packets
// are captured: captures, like faults, need packets on a socket.
func (s *shard) openLocal() {
	d := s.device
	if d.cfg.DisableLocal || d.capture != nil || d.net.Simulated() {
		return
	}
	cfg := local.Config{
		Shard: localShard{&s.mu, s}, Index: s.slot, Memories: &d.mu.memories, Packets: &s.mu.counters, Now: d.now,
		Log: d.log, Running: &d.running, Sockets: s.sockets,
	}
	for _, e := range s.endpoints {
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	s.mu.local.Open(cfg)
}

// SendReady implements local.Shard.
func (h localShard) SendReady(now time.Duration) { h.shard.transmit(now) }

// WakeIfReady implements local.Shard.
func (h localShard) WakeIfReady() {
	if h.shard.readyToSend() {
		h.shard.wake()
	}
}

// MayShare implements local.Shard. Faults need packets on a socket.
func (h localShard) MayShare(addr netip.Addr) bool {
	return !faults.Any(h.shard.device.mu.faults.Of(addr))
}

// Closed implements local.Shard.
func (h localShard) Closed() bool { return h.shard.device.mu.closed }

// Wake implements local.Shard.
func (h localShard) Wake() { h.shard.wake() }

// Addr implements local.Endpoint.
func (e *endpoint) Addr() netip.AddrPort { return e.socket.Addr() }

// Receive implements local.Endpoint.
func (e *endpoint) Receive(now time.Duration) bool { return e.receive(now) }

// PathOf implements local.Endpoint. The peer's shard that sent the packet does not matter.
func (e *endpoint) PathOf(from netip.AddrPort, p *wire.Packet) *local.Path {
	q := e.find(p.DestQP)
	if q != nil && q.shard == e.shard && q.path != nil && q.path.leadsTo(e, from) && admission.DefaultPartition(p.PKey) {
		if path := q.path.channel(); path != nil {
			return path
		}
	}
	e.shard.mu.drops.wrongPeer++
	return nil
}

// AllocMemory implements optional.MemoryDevice.
func (d *Device) AllocMemory(size int) (mem []byte, free func() error, err error) {
	if mem, free := d.net.AllocMemory(size); mem != nil {
		return mem, free, nil
	}
	d.mu.Lock()
	fits := d.main.mu.local.On() && d.mu.memories.Fits(size)
	d.mu.Unlock()
	if !fits {
		return nil, nil, fmt.Errorf("device %s: allocate %d bytes of memory that other processes can map: %w", d.cfg.Name, size, verbs.ErrNotSupported)
	}
	m, err := local.AllocMemory(size)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.memories.Add(m)
	return m.Bytes, func() error { return d.freeMemory(m) }, nil
}

// revoke stops devices of other processes from taking payload from mem.
func (d *Device) revoke(mem []byte) {
	if !d.mu.memories.Contains(mem) {
		return
	}
	for _, s := range d.mu.list {
		s.mu.local.Revoke(mem)
	}
}

func (d *Device) freeMemory(m *local.Memory) error {
	d.mu.Lock()
	d.mu.memories.Remove(m)
	for _, s := range d.mu.list {
		s.mu.local.Forget(m)
	}
	d.mu.Unlock()
	return m.Free()
}
