package srd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/fabric/fabrictest"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// tb is what tests, benchmarks and rapid have in common.
type tb interface {
	require.TestingT
	Helper()
}

// faults is what links do to packets. newNetwork sets the latency.
type faults = fabric.LinkConfig

// sendPort is the port that devices send from at first; one that is booted anew, from another.
const sendPort = 61000

const (
	latency         = 5 * time.Microsecond
	maxReorderDelay = 400 * time.Microsecond
	burst           = 16
	burstGap        = 2 * time.Microsecond
)

// network joins devices, in virtual time. What happens depends on the seed alone.
type network struct {
	*fabrictest.Network[netip.AddrPort]
	t      tb
	hosts  map[netip.AddrPort]*host
	packet wire.Packet
	// tap, where set, sees every packet that is sent, and may change or drop it.
	tap func(from, to netip.AddrPort, b []byte) []byte
}

func newNetwork(t tb, seed uint64, f faults) *network {
	f.Latency, f.ReorderDelay = latency, maxReorderDelay
	return &network{Network: fabrictest.NewNetwork[netip.AddrPort](seed, time.Millisecond, f), t: t, hosts: make(map[netip.AddrPort]*host)}
}

// carry takes a packet that a device sends.
func (w *network) carry(from, to netip.AddrPort, b []byte) {
	if w.tap != nil {
		b = w.tap(from, to, b)
	}
	if b != nil {
		w.fly(from, to, b)
	}
}

// fly puts a packet on the link from one address to another.
func (w *network) fly(from, to netip.AddrPort, b []byte) {
	port := w.portOf(from)
	w.Send(from, to, b, func(b []byte) {
		h := w.hosts[to]
		if h == nil || h.t == nil {
			w.Release(b)
			return
		}
		h.arrive(from, port, b)
		h.settle()
	})
}

// portOf is the port that the device at an address sends from.
func (w *network) portOf(addr netip.AddrPort) uint16 {
	if h := w.hosts[addr]; h != nil {
		return h.port
	}
	return sendPort
}

// host is a device on the network.
type host struct {
	net     *network
	t       *Transport
	memory  *transport.Memory
	addr    netip.AddrPort
	port    uint16 // that it sends from
	known   map[netip.AddrPort]uint16
	pumping bool
	nextKey uint32
	nextQPN uint32
	wake    func() // after anything has happened to the host
	mtu     verbs.MTU
}

const testDomain = 7

// boot puts a device on the network, in the place of one that was there before.
func (w *network) boot(addr string, seed uint64, mtu verbs.MTU) *host {
	h := &host{
		net: w, memory: transport.NewMemory(), addr: netip.MustParseAddrPort(addr), known: make(map[netip.AddrPort]uint16),
		nextKey: 1000, nextQPN: 100, mtu: mtu, port: sendPort,
	}
	cfg := Config{
		Memory: h.memory, Seed: seed, MTU: mtu, Window: 1 << 20,
		Output: func(a Address) transport.Output {
			return &hostOutput{h: h, to: a.Peer, flow: wire.NewFlow(h.addr, a.Peer)}
		},
		Reply: func(a Address, p *wire.Packet) {
			(&hostOutput{h: h, to: a.Peer, flow: wire.NewFlow(h.addr, a.Peer)}).Send(p, nil, 0)
		},
		Number: h.number,
		Random: w.Random.Uint32,
	}
	if seed%2 == 1 { // sequence numbers wrap around
		cfg.Random = func() uint32 { return w.Random.Uint32() | 0xfffe00 }
	}
	for i := range cfg.Secret {
		cfg.Secret[i] = byte(w.Random.Uint32())
	}
	h.t = New(cfg)
	if old := w.hosts[h.addr]; old != nil {
		old.t, h.port = nil, old.port+1
	}
	w.hosts[h.addr] = h
	w.Watch(h.deadline, h.expire)
	return h
}

func (h *host) number(peer netip.AddrPort) uint16 {
	if n, ok := h.known[peer]; ok {
		return n
	}
	return verbs.NoAH
}

// knows gives the host an address handle to a peer.
func (h *host) knows(peer *host) *AH {
	if _, ok := h.known[peer.addr]; !ok {
		h.known[peer.addr] = uint16(len(h.known))
		h.t.SetNumber(1, peer.addr, h.known[peer.addr])
	}
	ah := NewAH(Address{0, peer.addr})
	return &ah
}

// hostOutput encodes packets.
type hostOutput struct {
	h    *host
	to   netip.AddrPort
	flow wire.Flow
}

func (o *hostOutput) Send(p *wire.Packet, pieces [][]byte, size int) bool {
	headers := p.Opcode.HeaderLen()
	total := headers + size + int(p.Pad) + wire.ICRCLen
	b := o.h.net.Buffer(total)
	if p.PutHeaders(b) != headers || p.Pad != uint8(-size&3) || size > int(o.h.mtu) {
		require.Failf(o.h.net.t, "bad packet", "%+v with %d bytes", p, size)
	}
	at := headers
	for _, piece := range pieces {
		at += copy(b[at:], piece)
	}
	require.Equal(o.h.net.t, headers+size, at)
	clear(b[at : total-wire.ICRCLen])
	var back wire.Packet
	require.NoError(o.h.net.t, back.Parse(b), "%+v", p)
	crc := o.flow.ICRCStart(0, total, b[:headers])
	crc = wire.ICRCUpdate(crc, b[headers:total-wire.ICRCLen])
	wire.PutICRC(b[total-wire.ICRCLen:], wire.ICRCFinish(crc))
	o.h.net.carry(o.h.addr, o.to, b)
	return true
}

func (h *host) arrive(from netip.AddrPort, port uint16, b []byte) {
	flow := wire.NewFlow(from, h.addr)
	p := &h.net.packet
	if flow.CheckICRC(b, 0) && p.Parse(b) == nil && p.Opcode.Service() == wire.ServiceSRD {
		a := Address{0, from}
		h.t.Receive(h.t.Find(&a, p.SRDETH.Target), a, port, p, h.net.Now)
	}
	h.net.Release(b) // the packet must not be used any more
}

func (h *host) pump() {
	if h.pumping || h.t == nil || !h.t.Ready() {
		return
	}
	h.t.Transmit(h.net.Now, burst)
	if h.t.Ready() {
		h.pumping = true
		h.net.After(burstGap, func() {
			h.pumping = false
			h.pump()
		})
	}
}

func (h *host) settle() {
	if h.wake != nil {
		h.wake()
	}
	h.pump()
}

// deadline is when expire is to be called; zero: never.
func (h *host) deadline() time.Duration {
	if h.t == nil {
		return 0
	}
	return h.t.Deadline()
}

func (h *host) expire() {
	h.t.Expire(h.net.Now)
	if d := h.t.Deadline(); d != 0 && d <= h.net.Now {
		require.Fail(h.net.t, "Expire leaves a deadline that has passed")
	}
	h.settle()
}

// run advances the network until done reports true, for a limited time.
func (w *network) run(limit time.Duration, done func() bool) {
	w.t.Helper()
	if !w.RunUntil(limit, done) {
		require.Fail(w.t, "it does not come to an end", "at %v", w.Now)
	}
}

// completions records what a queue pair completes.
type completions struct {
	list  []verbs.WC
	extra []verbs.WCExtra
	frees []transport.QueueEntries
}

func (c *completions) Complete(wc verbs.WC, frees transport.QueueEntries, _ bool) {
	c.frees = append(c.frees, frees)
	c.list = append(c.list, wc)
	c.extra = append(c.extra, verbs.WCExtra{})
}

func (c *completions) CompleteFrom(wc verbs.WC, frees transport.QueueEntries, number uint16, gid verbs.GID) {
	c.frees = append(c.frees, frees)
	c.list = append(c.list, wc)
	c.extra = append(c.extra, verbs.WCExtra{SourceAH: number, SourceGID: gid})
}

func (c *completions) Room(int) bool { return true }

func (c *completions) take() []verbs.WC {
	list := c.list
	c.list, c.extra = nil, nil
	for i := range c.frees {
		c.frees[i].Free()
	}
	c.frees = c.frees[:0]
	return list
}

// end is a queue pair with its completions.
type end struct {
	*QP
	h          *host
	send, recv completions
}

const testKey = 0x11111111

// fakeAH stands for an address handle in a work request.
type fakeAH struct{ ah *AH }

func (f *fakeAH) Close() error { return nil }

type endOptions struct {
	depth, recvDepth int
	rnrRetry         uint8
	unsolicited      bool
	signalAll        bool
	domain           uint32
}

// newEnd makes a queue pair that is ready to send.
func (h *host) newEnd(o endOptions) *end {
	e := &end{h: h}
	h.nextQPN++
	if o.domain == 0 {
		o.domain = testDomain
	}
	e.QP = h.t.NewQP(QPConfig{
		Num: h.nextQPN, Domain: o.domain, Send: &e.send, Recv: &e.recv, SendDepth: max(o.depth, 1), RecvDepth: max(o.recvDepth, 1),
		MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: MaxInline, SignalAll: o.signalAll, Unsolicited: o.unsolicited,
		CheckAH: func(ah verbs.AH, _ uint32) (*AH, error) {
			f, ok := ah.(*fakeAH)
			if !ok {
				return nil, fmt.Errorf("no handle: %w", verbs.ErrInvalid)
			}
			return f.ah, nil
		},
	})
	e.ready(o.rnrRetry)
	return e
}

func (e *end) ready(rnrRetry uint8) {
	now := e.h.net.Now
	for _, s := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: testKey}, verbs.SRDToInit},
		{verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.SRDToRTR},
		{verbs.QPAttr{State: verbs.QPReadyToSend, RNRRetry: rnrRetry}, verbs.SRDToRTS | verbs.QPAttrRNRRetry},
	} {
		require.NoError(e.h.net.t, e.Modify(s.attr, s.mask, now))
	}
}

// to is the way to another host.
func (e *end) to(peer *host) *fakeAH { return &fakeAH{e.h.knows(peer)} }

// address fills in where a request goes.
func address(wr verbs.SendWR, ah *fakeAH, peer *end) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, peer.num, testKey
	if wr.Flags == 0 {
		wr.Flags = verbs.FlagSignaled
	}
	return wr
}

func (e *end) post(wrs ...verbs.SendWR) {
	n, err := e.PostSend(wrs, e.h.net.Now)
	require.NoError(e.h.net.t, err)
	require.Equal(e.h.net.t, len(wrs), n)
	e.h.pump()
}

func (e *end) postRecv(wrs ...verbs.RecvWR) {
	_, err := e.PostRecv(wrs)
	require.NoError(e.h.net.t, err)
}

// arena is registered memory, whose addresses are not those of its bytes.
type arena struct{ *transport.Region }

const everyAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead

func (h *host) arena(size int, access verbs.Access) arena {
	h.nextKey++
	words := make([]uint64, (size+7)/8+1)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
	r := &transport.Region{Key: h.nextKey, Domain: testDomain, Access: access, Base: uint64(h.nextKey) << 32, Mem: mem[:size:size]}
	require.True(h.net.t, h.memory.Add(r))
	return arena{r}
}

func (a arena) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: a.Base + uint64(off), Length: uint32(n), LKey: a.Key}
}

// noise is what patterns are taken from: to compute each of them takes long under the race
// detector.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

// pattern fills b with bytes that depend on their place.
func pattern(b []byte, seed uint64) []byte {
	from := seed * 0x9e3779b97f4a7c15 >> 44
	for rest := b; len(rest) > 0; from = 0 {
		rest = rest[copy(rest, noise()[from:]):]
	}
	return b
}
