package transport

import (
	"bytes"
	"sync"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	everyAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind
	peerAccess  = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	testDomain  = 7
)

// tb is what tests, benchmarks and rapid have in common.
type tb interface {
	require.TestingT
	Helper()
}

// completions records what a queue pair completes.
type completions struct {
	list      []verbs.WC
	frees     []QueueEntries
	solicited []bool
}

func (c *completions) Complete(wc verbs.WC, frees QueueEntries, solicited bool) {
	c.list = append(c.list, wc)
	c.frees = append(c.frees, frees)
	c.solicited = append(c.solicited, solicited)
}

// take polls them all.
func (c *completions) take() []verbs.WC {
	list := c.list
	c.list = nil
	c.clear()
	return list
}

// clear polls them all; list is used again.
func (c *completions) clear() {
	for i := range c.frees {
		c.frees[i].Free()
	}
	c.list, c.frees, c.solicited = c.list[:0], c.frees[:0], c.solicited[:0]
}

const guardLen = 64

var guards = bytes.Repeat([]byte{0xa5}, guardLen)

// arena is a registered region between two guards. Its addresses are not those
// of its bytes: the transport must go by the region alone.
type arena struct {
	*Region
	backing []byte
}

func newArena(t tb, m *Memory, key uint32, base uint64, size int, access verbs.Access) *arena {
	words := make([]uint64, (size+7)/8+2*guardLen/8) // aligned, as atomics need
	backing := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), guardLen+size+guardLen)
	a := &arena{backing: backing, Region: &Region{
		Key: key, Domain: testDomain, Access: access, Base: base, Mem: backing[guardLen : guardLen+size : guardLen+size],
	}}
	for _, guard := range [][]byte{backing[:guardLen], backing[guardLen+size:]} {
		copy(guard, guards)
	}
	require.True(t, m.Add(a.Region))
	return a
}

// sge names n bytes at an offset.
func (a *arena) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: a.Base + uint64(off), Length: uint32(n), LKey: a.Key}
}

// inlineEntry names bytes by their true address, as inline data is.
func inlineEntry(b []byte) verbs.SGE {
	return verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&b[0]))), Length: uint32(len(b))}
}

func (a *arena) requireGuards(t tb) {
	t.Helper()
	require.Equal(t, guards, a.backing[:guardLen], "guard before the region")
	require.Equal(t, guards, a.backing[len(a.backing)-guardLen:], "guard behind the region")
}

// patternLen is after how many bytes a pattern repeats itself.
const patternLen = 1 << 16

// patterns has what pattern has computed, by seed: a byte at a time takes long under the
// race detector.
var patterns sync.Map

// pattern fills b with bytes that depend on their place.
func pattern(b []byte, seed int) []byte {
	known, ok := patterns.Load(byte(seed))
	if !ok {
		whole := make([]byte, patternLen)
		for i := range whole {
			whole[i] = byte(i*7 + i>>8*13 + seed)
		}
		known, _ = patterns.LoadOrStore(byte(seed), whole)
	}
	for rest := b; len(rest) > 0; {
		rest = rest[copy(rest, known.([]byte)):]
	}
	return b
}

// options of a connection; the zero value of a field means what defaults says,
// which is to be called once.
type options struct {
	kind      verbs.QPType
	mtu       verbs.MTU
	psn       uint32 // of the client's first packet
	peerPSN   uint32
	timeout   uint8 // 255: zero
	retries   uint8 // 255: zero
	rnrRetry  uint8 // 255: zero
	rnrTimer  uint8
	initReads int // -1: none
	destReads int // -1: none
	access    verbs.Access
	depth     int
	recvDepth int
	maxSGE    int
	maxInline int
	window    int
	signalAll bool
	adaptive  bool
	silence   time.Duration
	asAdapter bool
	// controlled: there is congestion control, until the queue pair is reset.
	controlled bool
	arena      int // bytes of either region
	shared     *RecvQueue
	xrc        map[uint32]*XRCQueue
	waiting    *RNRWaiters
}

func (o options) defaults() options {
	set := func(p *uint8, value uint8) {
		switch *p {
		case 0:
			*p = value
		case 255:
			*p = 0
		}
	}
	count := func(p *int, value int) {
		switch *p {
		case 0:
			*p = value
		case -1:
			*p = 0
		}
	}
	set(&o.timeout, 8)
	set(&o.retries, 7)
	set(&o.rnrRetry, 7)
	set(&o.rnrTimer, 1)
	count(&o.initReads, 4)
	count(&o.destReads, o.initReads)
	count(&o.depth, 32)
	count(&o.recvDepth, 32)
	count(&o.maxSGE, 4)
	count(&o.maxInline, 64)
	count(&o.window, 1<<20)
	count(&o.arena, arenaLen)
	if o.mtu == 0 {
		o.mtu = 256
	}
	if o.access == 0 {
		o.access = peerAccess
	}
	return o
}

// end is a queue pair with all that it reports.
type end struct {
	t          tb
	qp         *QP
	rq         *RecvQueue
	memory     *Memory
	out        Output // of the present Transmit
	send, recv completions
	events     []verbs.EventType
	counters   Counters
}

// newEnd makes a queue pair in the state Reset.
func newEnd(t tb, num uint32, memory *Memory, o options) *end {
	e := &end{t: t, memory: memory, rq: o.shared}
	if e.rq == nil && o.kind <= verbs.UD {
		e.rq = NewRecvQueue(memory, testDomain, o.recvDepth, 4)
	}
	e.qp = New(Config{
		Type: o.kind, PortMTU: o.mtu, CheckAH: e.checkAH, Bind: findTestBind, Window: o.window,
		Num: num, Domain: testDomain, Memory: memory, Send: &e.send, Recv: &e.recv, RecvQueue: e.rq, XRC: o.xrc,
		SendDepth: o.depth, MaxSendSGE: o.maxSGE, MaxInline: o.maxInline, SignalAll: o.signalAll, Adaptive: o.adaptive, SilenceTimeout: o.silence, RNRWaiters: o.waiting,
		Counters: &e.counters,
		Event:    func(v verbs.EventType) { e.events = append(e.events, v) },
	})
	if o.asAdapter {
		e.qp.ActAsAdapter()
	}
	e.qp.SetWindow(o.window)
	e.qp.SetCongestionControl(o.controlled)
	return e
}

const (
	initMask = verbs.RCToInit
	rtrMask  = verbs.RCToRTR
	rtsMask  = verbs.RCToRTS
)

// masks are what each service takes on the way to RTS.
var masks = [...][3]verbs.QPAttrMask{
	verbs.RC: {initMask, rtrMask, rtsMask},
	verbs.UC: {initMask, rtrMask &^ (verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer), verbs.QPAttrState | verbs.QPAttrSQPSN},
	verbs.UD: {initMask&^verbs.QPAttrAccess | verbs.QPAttrQKey, verbs.QPAttrState, verbs.QPAttrState | verbs.QPAttrSQPSN},

	verbs.XRCSend: {initMask, rtrMask &^ (verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer), rtsMask},
	verbs.XRCRecv: {initMask, rtrMask, verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout},
}

// testKey is the Q_Key of both sides.
const testKey = 0x11111111

// attr holds every attribute that the three steps to RTS take.
func (o options) attr(peer, sqPSN, rqPSN uint32) verbs.QPAttr {
	return verbs.QPAttr{
		QKey: testKey, Port: 1, Access: o.access, PathMTU: o.mtu, DestQPN: peer, RQPSN: rqPSN, SQPSN: sqPSN,
		Timeout: o.timeout, RetryCount: o.retries, RNRRetry: o.rnrRetry, MinRNRTimer: o.rnrTimer,
		MaxInitReadAtomic: o.initReads, MaxDestReadAtomic: o.destReads,
	}
}

// ready takes the queue pair from Reset to RTS.
func (e *end) ready(a verbs.QPAttr) {
	e.t.Helper()
	for i, to := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		a.State = to
		require.NoError(e.t, e.qp.Modify(a, masks[e.qp.kind][i]))
	}
}

func (e *end) modify(to verbs.QPState) {
	e.t.Helper()
	require.NoError(e.t, e.qp.Modify(verbs.QPAttr{State: to}, verbs.QPAttrState))
}

func (e *end) post(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

func (e *end) postRecv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	n, err := e.qp.PostRecv(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// collector keeps copies of the packets that a queue pair sends.
type collector struct {
	t       tb
	packets []wire.Packet
}

func (c *collector) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	kept := *p
	kept.Payload = bytes.Join(pieces, nil)
	require.Len(c.t, kept.Payload, n, "the length given for the payload")
	require.Equal(c.t, uint8(-n&3), p.Pad, "padding")
	c.packets = append(c.packets, kept)
	return true
}

// transmit returns all that the queue pair has to send now.
func (e *end) transmit(now time.Duration) []wire.Packet {
	e.t.Helper()
	c := collector{t: e.t}
	e.out = &c
	for e.qp.Transmit(&c, now, 16) {
		require.Less(e.t, len(c.packets), 1<<16, "Transmit does not come to an end")
	}
	return c.packets
}

// receive hands one packet to the queue pair.
func (e *end) receive(p *wire.Packet, now time.Duration) {
	if e.qp.kind != verbs.UD {
		e.qp.Receive(p, now)
		return
	}
	header := testHeader
	e.qp.ReceiveDatagram(p, &header, 0)
	clear(header[:])
}

// take hands packets to the queue pair.
func (e *end) take(now time.Duration, packets ...wire.Packet) {
	for i := range packets {
		p := packets[i]
		p.Payload = bytes.Clone(p.Payload)
		e.receive(&p, now)
		clear(p.Payload) // belongs to the link again
	}
}

// rig is a client and a server with a region each, and no network: the test
// carries the packets, or does not.
type rig struct {
	t              tb
	o              options
	now            time.Duration
	client, server *end
	local, remote  *arena
}

const (
	clientQPN, serverQPN  = 0x11, 0x22
	localKey, remoteKey   = 0x1001, 0x2002
	localBase, remoteBase = 0x10_0000, 0x7000_0000_0000
	arenaLen              = 64 << 10
)

func newRig(t tb, o options) *rig {
	o = o.defaults()
	r := &rig{t: t, o: o, now: time.Second}
	serverMemory := NewMemory()
	if o.shared != nil {
		serverMemory = o.shared.memory
	}
	r.server = newEnd(t, serverQPN, serverMemory, o)
	o.shared = nil
	r.client = newEnd(t, clientQPN, NewMemory(), o)
	r.local = newArena(t, r.client.memory, localKey, localBase, o.arena, everyAccess)
	r.remote = newArena(t, r.server.memory, remoteKey, remoteBase, o.arena, everyAccess)
	pattern(r.local.Mem, 1)
	pattern(r.remote.Mem, 2)
	r.client.ready(o.attr(serverQPN, o.psn, o.peerPSN))
	r.server.ready(o.attr(clientQPN, o.peerPSN, o.psn))
	return r
}

// wr makes a signaled request on the first n bytes of both regions.
func (r *rig) wr(id uint64, op verbs.Opcode, n int) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{r.local.sge(0, n)},
		RemoteAddr: r.remote.Base, RKey: r.remote.Key, Imm: uint32(id) ^ 0xfeed,
	}
}

// exchange carries packets both ways until neither side has more to say.
func (r *rig) exchange() {
	r.t.Helper()
	for range 1 << 16 {
		there := r.client.transmit(r.now)
		r.server.take(r.now, there...)
		back := r.server.transmit(r.now)
		r.client.take(r.now, back...)
		if len(there)+len(back) == 0 {
			return
		}
	}
	require.Fail(r.t, "the exchange does not come to an end")
}

// request carries what the client sends to the server, and nothing back.
func (r *rig) request() {
	r.t.Helper()
	r.server.take(r.now, r.client.transmit(r.now)...)
}

// expire lets the client's deadline pass.
func (r *rig) expire() {
	r.t.Helper()
	at := r.client.qp.Deadline()
	require.Greater(r.t, at, r.now-1, "a deadline is set")
	r.now = at
	r.client.qp.Timeout(r.now)
}

// requireSent asserts the one completion of the client.
func (r *rig) requireSent(id uint64, status verbs.Status) {
	r.t.Helper()
	list := r.client.send.take()
	require.Len(r.t, list, 1)
	require.Equal(r.t, id, list[0].ID)
	require.Equal(r.t, status, list[0].Status, "got %v, want %v", list[0].Status, status)
	require.Equal(r.t, uint32(clientQPN), list[0].QPN)
}

// requireIntact asserts that nobody has written to the server's memory.
func (r *rig) requireIntact() {
	r.t.Helper()
	require.True(r.t, bytes.Equal(pattern(make([]byte, arenaLen), 2), r.remote.Mem), "the server's memory has changed")
	r.remote.requireGuards(r.t)
}

// opcodes lists the packets' opcodes.
func opcodes(packets []wire.Packet) []wire.Opcode {
	list := make([]wire.Opcode, len(packets))
	for i := range packets {
		list[i] = packets[i].Opcode
	}
	return list
}

// psns lists the packets' sequence numbers.
func psns(packets []wire.Packet) []uint32 {
	list := make([]uint32, len(packets))
	for i := range packets {
		list[i] = packets[i].PSN
	}
	return list
}

// ids lists the completed requests.
func ids(list []verbs.WC) []uint64 {
	out := make([]uint64, len(list))
	for i := range list {
		out[i] = list[i].ID
	}
	return out
}

// word is the first 8 bytes, as an integer in the machine's own order. They are aligned.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
