package cm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/fabric/fabrictest"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// tb is what tests, benchmarks, fuzz targets and rapid have in common.
type tb interface {
	require.TestingT
	Helper()
}

// faults is what links do to MADs; newNetwork sets the latency. What is corrupted arrives
// all the same: the ICRC misses one in 65,536.
type faults = fabric.LinkConfig

const (
	latency         = 10 * time.Microsecond
	maxReorderDelay = 3 * time.Second // by how much a reordered MAD may be late: more than a time-out
)

// network joins hosts in virtual time. What happens depends on the seed alone.
type network struct {
	*fabrictest.Network[*host]
	t     tb
	hosts map[netip.AddrPort]*host
	list  []*host
	// drop, where set, decides about each MAD before chance does.
	drop func(from, to *host, a mad.Attribute, b []byte) bool
	// trace has a line for each MAD that was sent.
	trace   []string
	tracing bool
	carried int
}

func newNetwork(t tb, seed uint64, f faults) *network {
	f.Latency, f.ReorderDelay = latency, maxReorderDelay
	return &network{Network: fabrictest.NewNetwork[*host](seed, time.Second, f), t: t, hosts: map[netip.AddrPort]*host{}}
}

// host is a manager with its endpoint and an application.
type host struct {
	*Manager
	net     *network
	name    string
	address netip.AddrPort
	// foreign sends from UDP ports of its own choosing, as the kernel does.
	foreign bool
	// source is the port that it says that it sends from, and does; 0: it does not say.
	source uint16
	// dead hosts take nothing; those that refuse say that the port is closed.
	dead, refuses bool
	// stopped does not take events.
	stopped bool
	// app is given each event after it has been recorded.
	app func(e *Event)
	// log has what each connection was told; all has every event.
	log  map[*Conn][]Event
	all  []Event
	qpns map[uint32]*Conn
	qpn  uint32
	qpOf map[*Conn]uint32
}

// attach makes a host at an address, with a deterministic source of randomness.
func (w *network) attach(name, address string, config Config) *host {
	if config.Random == nil {
		config.Random = rand.New(rand.NewPCG(w.Random.Uint64(), 2)).Uint64
	}
	h := &host{
		Manager: New(config), net: w, name: name, address: netip.MustParseAddrPort(address),
		log: map[*Conn][]Event{}, qpns: map[uint32]*Conn{}, qpOf: map[*Conn]uint32{}, qpn: 0x10,
	}
	w.Watch(h.deadline, h.expire)
	w.hosts[h.address] = h
	w.list = append(w.list, h)
	return h
}

// pair is two hosts, the first of which dials.
func pair(t tb, f faults) (w *network, a, b *host) {
	w = newNetwork(t, 1, f)
	return w, w.attach("A", "10.0.0.1:4791", Config{Slot: 3}), w.attach("B", "10.0.0.2:4791", Config{})
}

func (h *host) pathTo(to *host) Path {
	return Path{Local: h.address, Remote: to.address, SourcePort: h.source}
}

// newQPN returns a queue pair number that no connection of the host has.
func (h *host) newQPN() uint32 {
	for {
		h.qpn = (h.qpn+1)%256 + 16
		if h.qpns[h.qpn] == nil {
			return h.qpn
		}
	}
}

func (h *host) use(c *Conn, qpn uint32) {
	require.Nil(h.net.t, h.qpns[qpn], "the queue pair number is in use")
	h.qpns[qpn], h.qpOf[c] = c, qpn
}

var testService = Service{PortSpaceTCP, 7471}

// params are those of a dial.
func (h *host) params(to *host) ConnectParams {
	return ConnectParams{
		Service: testService, Path: h.pathTo(to), SourcePort: 40000, QPN: h.newQPN(), PSN: 0x111111,
		ResponderResources: 4, InitiatorDepth: 7, RetryCount: 6, RNRRetry: 5, PathMTU: 1024,
		PrivateData: []byte("request"),
	}
}

func (h *host) connect(p ConnectParams) *Conn {
	h.net.t.Helper()
	c, err := h.Connect(p, h.net.Now)
	require.NoError(h.net.t, err)
	h.use(c, p.QPN)
	h.settle()
	return c
}

func (h *host) accept(c *Conn) {
	h.net.t.Helper()
	p := AcceptParams{
		QPN: h.newQPN(), PSN: 0x222222, ResponderResources: 16, InitiatorDepth: 2, RNRRetry: 4, PrivateData: []byte("reply"),
	}
	require.NoError(h.net.t, c.Accept(p, h.net.Now))
	h.use(c, p.QPN)
	h.settle()
}

func (h *host) listen(p ListenParams) *Listener {
	h.net.t.Helper()
	l, err := h.Listen(p)
	require.NoError(h.net.t, err)
	return l
}

// answerAll is the application that agrees to everything.
func (h *host) answerAll() {
	h.app = func(e *Event) {
		switch e.Type {
		case EventConnectRequest:
			h.accept(e.Conn)
		case EventConnectResponse:
			require.NoError(h.net.t, e.Conn.Establish([]byte("ready"), h.net.Now))
		case EventSIDRRequest:
			require.NoError(h.net.t, e.Request.Reply(SIDRReply{QPN: 0x77, QKey: QKeyUDP, PrivateData: []byte("answer")}))
		}
	}
}

// settle sends and delivers what waits. It may be called from within a call of app.
func (h *host) settle() {
	var d Datagram
	for h.NextMAD(&d) {
		h.net.carry(h, &d)
	}
	var e Event
	for !h.stopped && h.NextEvent(&e) {
		h.deliver(e)
		for h.NextMAD(&d) {
			h.net.carry(h, &d)
		}
	}
}

// deliver records an event, checks that it can be after the earlier ones, and gives it to
// the application.
func (h *host) deliver(e Event) {
	t := h.net.t
	h.all = append(h.all, e)
	if c := e.Conn; c != nil {
		before := h.log[c]
		last := EventType(0)
		if len(before) > 0 {
			last = before[len(before)-1].Type
		}
		ok := false
		switch e.Type {
		case EventConnectRequest:
			ok = last == 0 && c.Passive()
		case EventConnectResponse:
			ok = last == 0 && !c.Passive()
		case EventEstablished:
			ok = last == EventConnectRequest
		case EventRejected, EventUnreachable:
			ok = last == 0 && !c.Passive() || last == EventConnectResponse || last == EventConnectRequest
		case EventDisconnected:
			ok = last == EventEstablished || last == EventConnectResponse || last == EventConnectRequest
		case EventTimeWaitExit:
			ok = last != EventTimeWaitExit
			if qpn, used := h.qpOf[c]; used {
				require.Same(t, c, h.qpns[qpn])
				delete(h.qpns, qpn)
				delete(h.qpOf, c)
			}
		}
		require.True(t, ok, "%s: %v after %v", h.name, e.Type, types(before))
		h.log[c] = append(before, e)
	}
	if h.app != nil {
		h.app(&e)
	}
}

func types(events []Event) []EventType {
	var list []EventType
	for _, e := range events {
		list = append(list, e.Type)
	}
	return list
}

// reports is what a host's connections were told, without the last event, as the table in the
// package's comment has it.
func (h *host) reports() string {
	var list []string
	for _, e := range h.all {
		switch e.Type {
		case EventConnectRequest:
			list = append(list, "request")
		case EventConnectResponse:
			list = append(list, "C")
		case EventEstablished:
			list = append(list, "E")
		case EventRejected:
			list = append(list, fmt.Sprintf("R %d", e.Reason))
		case EventUnreachable:
			list = append(list, fmt.Sprintf("U %v", e.Cause))
		case EventDisconnected:
			list = append(list, fmt.Sprintf("D %v", e.Cause))
		}
	}
	return strings.Join(list, ", ")
}

// carry brings a MAD to its host, or does not.
func (w *network) carry(from *host, d *Datagram) {
	w.carried++
	h, err := mad.DecodeHeader(d.MAD[:])
	require.NoError(w.t, err)
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%s %v", from.name, h.Attribute))
	}
	if from.dead {
		return
	}
	require.Equal(w.t, from.address, d.Path.Local, "a MAD leaves by an endpoint of the host")
	source := from.address
	if from.source != 0 {
		source = netip.AddrPortFrom(source.Addr(), from.source)
	}
	if from.foreign {
		source = netip.AddrPortFrom(source.Addr(), uint16(49152+w.Random.IntN(16000)))
	}
	to := w.hosts[d.Path.Remote]
	if to == nil || w.drop != nil && w.drop(from, to, h.Attribute, d.MAD[:]) {
		return
	}
	b := w.Buffer(mad.Len)
	copy(b, d.MAD[:])
	back := d.Path
	w.Send(from, to, b, func(b []byte) { w.arrive(source, to, b, back, h.TransactionID) })
}

func (w *network) arrive(source netip.AddrPort, to *host, b []byte, back Path, transactionID uint64) {
	if to.dead {
		w.Release(b)
		if sender := w.hosts[back.Local]; to.refuses && sender != nil && !sender.dead {
			w.After(latency, func() {
				sender.PeerUnreachable(back, transactionID, CausePortUnreachable, w.Now)
				sender.settle()
			})
		}
		return
	}
	to.Receive(b, Path{Local: to.address, Remote: source, SourcePort: to.source}, w.Now)
	w.Release(b) // it must not be used any more
	to.settle()
}

// deadline is when expire is to be called; zero: never.
func (h *host) deadline() time.Duration {
	if h.dead {
		return 0
	}
	return h.Deadline()
}

func (h *host) expire() {
	h.Expire(h.net.Now)
	if d := h.Deadline(); d != 0 && d <= h.net.Now {
		require.Fail(h.net.t, "Expire leaves a deadline that has passed")
	}
	h.settle()
}

// run lets everything happen, and fails if that takes longer than limit.
func (w *network) run(limit time.Duration) {
	w.t.Helper()
	if !w.Run(limit) {
		require.Fail(w.t, "still busy", "after %v of virtual time", limit)
	}
}

// requireEmpty asserts that nothing is left but listeners.
func (h *host) requireEmpty() {
	h.net.t.Helper()
	e := h.Entries()
	e.Listeners = 0
	require.Equal(h.net.t, Entries{}, e, h.name)
	require.Empty(h.net.t, h.requests)
	require.Empty(h.net.t, h.peers)
	require.Empty(h.net.t, h.sidr)
	require.Empty(h.net.t, h.qpns, "queue pair numbers in use")
	for _, l := range h.listeners {
		require.Zero(h.net.t, l.HalfOpen())
	}
	require.Zero(h.net.t, h.Deadline())
	for c, list := range h.log {
		require.Equal(h.net.t, EventTimeWaitExit, list[len(list)-1].Type)
		require.Equal(h.net.t, StateIdle, c.State())
	}
}

// requireSane asserts what holds at any time.
func (h *host) requireSane() {
	h.net.t.Helper()
	if err := h.check(); err != nil {
		require.NoError(h.net.t, err, h.name)
	}
}

func (h *host) check() error {
	halfOpen, waiting, inPeers, inRequests := 0, 0, 0, 0
	for id, c := range h.conns {
		var wrong string
		switch {
		case id != c.localID:
			wrong = "ID"
		case c.state == StateIdle, (c.state == StateEstablished) == (c.timer.Queued()):
			wrong = "timer"
		case c.awaitsResponse() != (c.message != nil):
			wrong = "message"
		case c.passive && h.requests[c.requestKey()] != c:
			wrong = "place among the requests"
		case c.inPeers && h.peers[c.peerKey()] != c:
			wrong = "place among the peers"
		case c.state == StateEstablished && (c.halfOpen || !c.inPeers):
			wrong = "place of an established connection"
		}
		if wrong != "" {
			return fmt.Errorf("%v: wrong %s", c.state, wrong)
		}
		for condition, count := range map[*int]bool{&waiting: c.timer.Queued(), &halfOpen: c.halfOpen, &inPeers: c.inPeers, &inRequests: c.passive} {
			if count {
				*condition++
			}
		}
	}
	for _, r := range h.sidr {
		if r.done || !r.timer.Queued() {
			return fmt.Errorf("a SIDR request that is done")
		}
		halfOpen++
		waiting++
	}
	for e := range h.events.All() {
		if e.Type == EventConnectRequest && e.Conn.state == StateIdle || e.Request != nil && e.Request.done {
			halfOpen++ // has its place until the event is taken
		}
	}
	byListener := 0
	for _, l := range h.listeners {
		if n := l.HalfOpen(); n < 0 || n > 2*l.params.Backlog {
			return fmt.Errorf("%d half-open, the backlog is %d", n, l.params.Backlog)
		}
		byListener += l.HalfOpen()
	}
	for owner := range h.timers.All() {
		if c, ok := owner.(*Conn); ok && h.conns[c.localID] != c {
			return fmt.Errorf("the timer of a connection that is forgotten")
		}
	}
	switch {
	case halfOpen != h.halfOpen.Taken() || byListener > halfOpen || halfOpen > h.config.MaxHalfOpen:
		return fmt.Errorf("%d half-open, counted %d, %d by listeners", halfOpen, h.halfOpen.Taken(), byListener)
	case len(h.timers) != waiting+len(h.resolutions):
		return fmt.Errorf("%d timers, %d in use", len(h.timers), waiting+len(h.resolutions))
	case len(h.peers) != inPeers || len(h.requests) != inRequests:
		return fmt.Errorf("%d peers and %d requests, of %d and %d", len(h.peers), len(h.requests), inPeers, inRequests)
	case len(h.conns) > h.config.MaxConnections || h.outgoing.Len() > maxQueuedMADs:
		return fmt.Errorf("too much of something")
	}
	return nil
}

// forge delivers a MAD with the fields that the test sets, from the given address.
func (w *network) forge(to *host, source string, message encoder) {
	w.t.Helper()
	var b [mad.Len]byte
	require.NoError(w.t, message.Encode(&b))
	to.Receive(b[:], Path{Local: to.address, Remote: netip.MustParseAddrPort(source)}, w.Now)
}

// sent takes the MADs that a host wants to send, without sending them.
func (h *host) sent() []Datagram {
	var list []Datagram
	for {
		var d Datagram
		if !h.NextMAD(&d) {
			return list
		}
		list = append(list, d)
	}
}

// requireSent takes the one MAD that a host wants to send, and decodes it.
func requireSent[T any, M interface {
	*T
	encoder
	Decode([]byte) error
}](h *host) (M, Path) {
	t := h.net.t
	t.Helper()
	list := h.sent()
	require.Len(t, list, 1)
	m := M(new(T))
	require.NoError(t, m.Decode(list[0].MAD[:]))
	return m, list[0].Path
}

// nextEvent takes the one event that waits.
func (h *host) nextEvent(want EventType) Event {
	t := h.net.t
	t.Helper()
	var e Event
	require.True(t, h.NextEvent(&e), "no event, want %v", want)
	require.Equal(t, want, e.Type, "got %v, want %v", e.Type, want)
	return e
}

func (h *host) requireNoEvent() {
	h.net.t.Helper()
	var e Event
	require.False(h.net.t, h.NextEvent(&e), "%v", e.Type)
}

// kill stands for the moment in which a process is killed: it takes and sends nothing.
func (h *host) kill(refuses bool) { h.dead, h.refuses = true, refuses }

// request is a REQ as a foreign manager may send it from 10.0.0.9.
func request(to *host, commID uint32) *mad.REQ {
	source := netip.MustParseAddr("10.0.0.9")
	var private [mad.IPHeaderLen]byte
	(&mad.IPHeader{Source: source, Destination: to.address.Addr(), SourcePort: 0x1234}).Encode(&private)
	return &mad.REQ{
		TransactionID: 0x100000000 | uint64(commID), LocalCommID: commID, ServiceID: testService.ID(), CAGUID: 0x999,
		QPN: 0x900 + commID, ResponderResources: 3, InitiatorDepth: 2, RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
		StartingPSN: 0x333333, RetryCount: 7, PKey: 0xffff, PathMTU: 3, RNRRetry: 7, MaxCMRetries: 15,
		Primary: mad.Path{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: verbs.GIDFromAddr(source), RemoteGID: verbs.GIDFromAddr(to.address.Addr()),
			HopLimit: 64, AckTimeout: 19,
		},
		PrivateData: private[:],
	}
}

const foreigner = "10.0.0.9:50000"
