package cm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// randomApp is an application that does anything that it may, now or later.
type randomApp struct {
	*host
	maxResponseDelay time.Duration // the longest that it takes
	refusals         float64
	dials            []*Conn
}

// later does something now or in a while.
func (h *randomApp) later(f func()) {
	if h.net.Chance(0.5) {
		f()
		return
	}
	h.net.After(time.Duration(h.net.Random.Int64N(int64(h.maxResponseDelay))), func() {
		f()
		h.settle()
	})
}

func (h *randomApp) decide(e *Event) {
	c, w := e.Conn, h.net
	switch e.Type {
	case EventConnectRequest:
		if w.Chance(h.refusals / 2) {
			return // forgets it
		}
		h.later(func() {
			switch {
			case c.State() != StateREQReceived:
			case w.Chance(h.refusals):
				require.NoError(w.t, c.Reject(RejectParams{}, w.Now))
			default:
				h.accept(c)
				if w.Chance(0.5) {
					h.packets(c)
				}
			}
		})
	case EventConnectResponse:
		h.later(func() {
			switch {
			case c.State() != StateREPReceived:
			case w.Chance(h.refusals):
				require.NoError(w.t, c.Reject(RejectParams{}, w.Now))
			default:
				require.NoError(w.t, c.Establish([]byte("ready"), w.Now))
				h.useFor(c)
			}
		})
	case EventEstablished:
		h.useFor(c)
	case EventSIDRRequest:
		h.later(func() { _ = e.Request.Reply(SIDRReply{QPN: 7}) })
	}
}

// packets has data come before the RTU, once the peer is established.
func (h *randomApp) packets(c *Conn) {
	w := h.net
	w.After(time.Duration(w.Random.Int64N(int64(time.Second))), func() {
		if peer := h.peerOf(c); peer != nil && peer.State() == StateEstablished {
			c.CommunicationEstablished(w.Now)
			h.settle()
		}
	})
}

// peerOf is the other end of a connection, if it still is there.
func (h *randomApp) peerOf(c *Conn) *Conn {
	to := h.net.hosts[c.Path().Remote]
	if to == nil {
		return nil
	}
	if p := to.conns[c.remoteID]; p != nil && p.remoteID == c.localID {
		return p
	}
	return nil
}

// useFor disconnects or closes a connection after some time, or leaves that to the peer.
func (h *randomApp) useFor(c *Conn) {
	w := h.net
	if w.Chance(0.3) {
		return
	}
	w.After(time.Duration(w.Random.Int64N(int64(h.maxResponseDelay))), func() {
		switch {
		case w.Chance(0.3):
			c.Close(w.Now)
		case c.State() == StateEstablished:
			require.NoError(w.t, c.Disconnect(DisconnectParams{}, w.Now))
		}
		h.settle()
	})
}

// model is hosts with randomApp applications over a bad network.
type model struct {
	*network
	hosts []*randomApp
}

func newModel(t tb, seed uint64, f faults, hosts, backlog int, refusals float64, maxResponseDelay time.Duration) *model {
	m := &model{network: newNetwork(t, seed, f)}
	for i := range hosts {
		// Some have UDP port 4791, some another, some send from anywhere.
		address := fmt.Sprintf("10.0.0.%d:%d", i/2+1, 4791+i%2*209)
		config := Config{Requests: m.requests}
		h := &randomApp{host: m.attach(fmt.Sprint("H", i), address, config), refusals: refusals, maxResponseDelay: maxResponseDelay}
		h.foreign = i%4 == 2
		h.app = h.decide
		h.listen(ListenParams{Service: testService, Backlog: backlog})
		h.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD, Backlog: backlog})
		m.hosts = append(m.hosts, h)
	}
	return m
}

// requests is Config.Requests: of half the queue pairs, requests are under way, and of some of
// them they take longer than a DREQ waits.
func (m *model) requests(uint32) (complete func() bool) {
	if m.Chance(0.5) {
		return nil
	}
	end := m.Now + time.Duration(m.Random.Int64N(int64(2*maxHold)))
	return func() bool { return m.Now >= end }
}

// dial has a host connect to another, some time soon.
func (m *model) dial() {
	random := m.Random
	from, to := m.hosts[random.IntN(len(m.hosts))], m.hosts[random.IntN(len(m.hosts))]
	m.After(time.Duration(random.Int64N(int64(20*time.Second))), func() {
		if m.Chance(0.1) {
			from.resolve(to.host)
			return
		}
		p := from.params(to.host)
		p.SourcePort, p.MaxCMRetries = 0, uint8(8+random.IntN(8))
		if m.Chance(0.2) {
			p.Deadline = m.Now + time.Duration(random.Int64N(int64(10*time.Second))) + 1
		}
		c := from.connect(p)
		from.dials = append(from.dials, c)
		if m.Chance(0.1) {
			m.After(time.Duration(random.Int64N(int64(5*time.Second))), func() {
				c.Close(m.Now)
				from.settle()
			})
		}
	})
}

// finish lets everything come to its end, and disconnects what is established.
func (m *model) finish() {
	limit := m.Now + time.Hour
	for busy := true; busy; {
		for m.Step() {
			for _, h := range m.hosts {
				h.requireSane()
			}
			if m.Now > limit {
				require.Fail(m.t, "still busy after an hour of virtual time")
			}
		}
		busy = false
		for _, h := range m.hosts {
			for _, c := range h.conns {
				require.Equal(m.t, StateEstablished, c.State(), "nothing else lasts")
				busy = true
				require.NoError(m.t, c.Disconnect(DisconnectParams{}, m.Now))
			}
			h.settle()
		}
	}
	for _, h := range m.hosts {
		h.requireEmpty()
	}
}

// requireAgreement asserts that what the two ends of each connection were told fits.
func (m *model) requireAgreement() {
	t := m.t
	type key struct {
		path             Path
		localID, otherID uint32
	}
	ends := map[key]*Conn{}
	logs := map[*Conn][]Event{}
	for _, h := range m.hosts {
		for c, log := range h.log {
			logs[c] = log
			if c.Passive() {
				ends[key{Path{Local: c.path.Local, Remote: c.path.Remote}, c.localID, c.remoteID}] = c
			}
		}
	}
	was := func(c *Conn, e EventType) bool {
		for _, l := range logs[c] {
			if l.Type == e {
				return true
			}
		}
		return false
	}
	met := 0
	for _, h := range m.hosts {
		for _, a := range h.dials {
			if !a.remoteKnown {
				continue
			}
			p := ends[key{Path{Local: a.path.Remote, Remote: a.path.Local}, a.remoteID, a.localID}]
			require.NotNil(t, p, "a response comes from a connection")
			met++
			delete(ends, key{p.path, p.localID, p.remoteID})
			// Both ends know both queue pairs, and agree on what may be outstanding.
			require.Equal(t, a.localQPN, p.remoteQPN)
			require.Equal(t, p.localQPN, a.remoteQPN)
			require.Equal(t, a.localPSN, p.remotePSN)
			require.Equal(t, p.localPSN, a.remotePSN)
			require.Equal(t, p.responderResources, a.initiatorDepth)
			require.Equal(t, a.responderResources, p.initiatorDepth)
		}
	}
	for _, p := range ends {
		require.False(t, was(p, EventEstablished), "nobody is established with nobody")
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		probability := func(name string, limit float64) float64 {
			return rapid.SampledFrom([]float64{0, limit / 10, limit / 3, limit}).Draw(t, name)
		}
		m := newModel(t, rapid.Uint64().Draw(t, "seed"), faults{
			Loss: probability("loss", 0.4), Duplicate: probability("duplication", 0.5), Reorder: probability("reordering", 0.5),
		}, rapid.IntRange(2, 5).Draw(t, "hosts"), rapid.SampledFrom([]int{1, 3, 100}).Draw(t, "backlog"),
			probability("refusals", 0.3), rapid.SampledFrom([]time.Duration{time.Millisecond, 3 * time.Second, 90 * time.Second}).Draw(t, "patience"))
		for range rapid.IntRange(1, 40).Draw(t, "dials") {
			m.dial()
		}
		m.finish()
		m.requireAgreement()
	})
}

// TestModelCorruption delivers corrupted MADs, as happens to one in 65,536. They may break a
// connection, but none stays open, and nothing leaks.
func TestModelCorruption(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, rapid.Uint64().Draw(t, "seed"), faults{
			Loss: 0.1, Duplicate: 0.3, Reorder: 0.3, Corrupt: rapid.SampledFrom([]float64{0.01, 0.1, 0.5}).Draw(t, "corruption"),
		}, 3, 10, 0.1, 3*time.Second)
		for range rapid.IntRange(1, 40).Draw(t, "dials") {
			m.dial()
		}
		m.finish()
	})
}

// TestPerfectNetwork: without losses and rejections, every dial succeeds.
func TestPerfectNetwork(t *testing.T) {
	t.Parallel()
	m := newModel(t, 7, faults{Duplicate: 0.3}, 4, 100, 0, time.Second)
	for range 100 {
		m.dial()
	}
	m.finish()
	m.requireAgreement()
	for _, h := range m.hosts {
		for _, c := range h.dials {
			if c.closed || c.deadlineCause == CauseDeadline && len(h.log[c]) > 0 && h.log[c][0].Cause == CauseDeadline {
				continue
			}
			require.Equal(t, EventConnectResponse, h.log[c][0].Type)
		}
	}
}

// TestThousandDials: 1,000 clients dial one server at the same moment, with a backlog that
// is much smaller, over a network that loses a tenth. All get through. Short: 250.
func TestThousandDials(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 1, faults{Loss: 0.1})
	b := w.attach("server", "10.1.0.1:4791", Config{})
	b.answerAll()
	l := b.listen(ListenParams{Service: testService, Backlog: 100})
	clients := 1000
	if testing.Short() {
		clients = 250
	}
	var conns []*Conn
	begin := w.Now
	for i := range clients {
		a := w.attach("client", fmt.Sprintf("10.2.%d.%d:4791", i/250, i%250+1), Config{})
		a.answerAll()
		conns = append(conns, a.connect(a.params(b)))
	}
	b.qpns = map[uint32]*Conn{}
	qpn := uint32(1000)
	b.app = func(e *Event) {
		if e.Type == EventConnectRequest {
			qpn++
			require.NoError(t, e.Conn.Accept(AcceptParams{QPN: qpn}, w.Now))
		}
	}
	established := 0
	for established < clients && w.Step() {
		established = len(b.peers)
		require.LessOrEqual(t, l.HalfOpen(), 2*100)
	}
	t.Logf("%d connections after %v of virtual time; the backlog was full %d times", established, w.Now-begin, b.Counters().BacklogFull)
	require.Equal(t, clients, established)
	for _, c := range conns {
		require.Equal(t, StateEstablished, c.State())
	}
	require.Zero(t, b.Entries().Timers)
	b.requireSane()
	for _, c := range conns {
		c.Close(w.Now)
	}
	for _, h := range w.list {
		h.settle()
	}
	w.run(10 * time.Minute)
	for _, h := range w.list {
		h.requireEmpty()
	}
}

// TestSoakReconnect connects and disconnects again and again: nothing is left.
func TestSoakReconnect(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{Loss: 0.05, Duplicate: 0.1})
	b.listen(ListenParams{Service: testService})
	a.answerAll()
	b.answerAll()
	for i := range soak.Rounds(t, 300, 10_000) {
		c := a.connect(a.params(b))
		for c.State() < StateEstablished && c.State() != StateIdle && w.Step() {
			continue
		}
		if c.State() == StateEstablished {
			require.NoError(t, c.Disconnect(DisconnectParams{}, w.Now))
			a.settle()
		}
		if i%10 == 9 {
			w.Pass(30 * time.Second)
			require.LessOrEqual(t, a.Entries().Connections+b.Entries().Connections, 4)
			for _, h := range []*host{a, b} {
				h.all, h.log = nil, map[*Conn][]Event{}
				for _, c := range h.conns {
					h.log[c] = []Event{{Type: EventConnectRequest}}
				}
			}
			w.trace = nil
		}
	}
	for _, h := range []*host{a, b} {
		for _, c := range h.conns {
			c.Close(w.Now)
		}
		h.settle()
	}
	w.run(10 * time.Minute)
	a.requireEmpty()
	b.requireEmpty()
}
