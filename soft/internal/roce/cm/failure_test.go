package cm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestKilled kills either process in each state, with a host that reports the closed port and
// with one that does not. It checks the table of the package comment.
func TestKilled(t *testing.T) {
	t.Parallel()
	const (
		atREQ         = "before the REQ comes"
		atRequest     = "before it accepts"
		atREP         = "when the REP has been sent"
		atResponse    = "when the REP has come"
		atEstablished = "when established"
		atDREQ        = "when the peer disconnects"
	)
	for _, c := range []struct {
		when, who      string
		silent, closed string // what the survivor is told; closed: by a host that says so
	}{
		{atREQ, "B", "U no response from the peer", "U no process has the peer's UDP port"},
		{atRequest, "B", "U no response from the peer", "U no process has the peer's UDP port"},
		{atREP, "B", "C", "C"},
		{atREP, "A", "request, U no response from the peer", "request, U no process has the peer's UDP port"},
		{atResponse, "A", "request, U no response from the peer", "request, U no process has the peer's UDP port"},
		{atRequest, "A", "request, U no response from the peer", "request, U no process has the peer's UDP port"},
		{atEstablished, "A", "request, E", "request, E"},
		{atEstablished, "B", "C", "C"},
		{atDREQ, "A", "request, E, D no response from the peer", "request, E, D no process has the peer's UDP port"},
		{atDREQ, "B", "C, D no response from the peer", "C, D no process has the peer's UDP port"},
	} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s, closed port %v", c.who, c.when, closed), func(t *testing.T) {
				t.Parallel()
				w, a, b := pair(t, faults{})
				killed, survivor := a, b
				want := c.silent
				if closed {
					want = c.closed
				}
				if c.who == "B" {
					killed, survivor = b, a
				}
				kill := func() { killed.kill(closed) }
				b.listen(ListenParams{Service: testService})
				a.answerAll()
				b.answerAll()
				acceptA, acceptB := a.app, b.app
				b.app = func(e *Event) {
					switch {
					case e.Type == EventConnectRequest && c.when == atRequest:
						kill()
						if c.who == "A" {
							acceptB(e)
						}
					case e.Type == EventConnectRequest && c.when == atREP:
						acceptB(e)
						w.After(0, kill) // the REP is on its way
					default:
						acceptB(e)
					}
				}
				a.app = func(e *Event) {
					if e.Type == EventConnectResponse && c.when == atResponse {
						kill()
						return
					}
					acceptA(e)
				}
				if c.when == atREQ {
					kill()
				}
				a.connect(a.params(b))
				if c.when == atEstablished || c.when == atDREQ {
					w.Pass(time.Second)
					kill()
				}
				if c.when == atDREQ {
					var conn *Conn
					for _, conn = range survivor.conns {
						require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
					}
					survivor.settle()
				}
				w.run(3 * time.Minute)
				require.Equal(t, want, survivor.reports())
				if survivor.reports() != "C" && survivor.reports() != "request, E" {
					survivor.requireEmpty()
				}
			})
		}
	}
}

// A report of a closed port ends the handshake whose message it quotes, and no other: the peer may
// have opened its port since. Nothing more is sent to a closed port.
func TestReportOfAClosedPort(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	var toB []mad.Attribute
	var refused uint64
	w.drop = func(_, to *host, attribute mad.Attribute, message []byte) bool {
		if h, _ := mad.DecodeHeader(message); to == b && b.dead {
			toB = append(toB, attribute)
			refused = h.TransactionID
		}
		return false
	}
	b.listen(ListenParams{Service: testService})
	a.answerAll()
	b.answerAll()
	b.kill(true)
	a.connect(a.params(b))
	w.Pass(time.Second)
	require.Equal(t, "U no process has the peer's UDP port", a.reports())
	require.Equal(t, []mad.Attribute{mad.AttrREQ}, toB)

	b.dead = false
	a.connect(a.params(b))
	a.resolve(b)
	for _, id := range []uint64{refused, 0, 1} {
		a.PeerUnreachable(a.pathTo(b), id, CausePortUnreachable, w.Now)
	}
	a.settle()
	w.Pass(time.Second)
	require.Equal(t, "U no process has the peer's UDP port, C", a.reports())
}

// TestDeadlines: the caller's deadlines end a dial, an accept and a disconnect.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	b.kill(false)
	p := a.params(b)
	p.Deadline = w.Now + 2500*time.Millisecond
	a.connect(p)
	w.run(time.Minute)
	require.Equal(t, p.Deadline+latency, w.Now, "a REJ has gone out at the deadline")
	require.Equal(t, "U deadline exceeded", a.reports())

	w, a, b, active, passive := established(t)
	b.kill(false)
	require.NoError(t, active.Disconnect(DisconnectParams{Deadline: w.Now + time.Second}, w.Now))
	a.settle()
	w.Pass(1001 * time.Millisecond)
	require.Equal(t, "D deadline exceeded", a.reports())
	require.Equal(t, StateTimeWait, active.State())
	w.run(time.Minute)
	a.requireEmpty()
	_ = passive

	w, _, b = pair(t, faults{})
	b.listen(ListenParams{Service: testService})
	w.forge(b, foreigner, request(b, 1))
	conn := b.nextEvent(EventConnectRequest).Conn
	require.NoError(t, conn.Accept(AcceptParams{QPN: 2, Deadline: w.Now + 100*time.Millisecond}, w.Now))
	b.sent()
	require.Equal(t, w.Now+100*time.Millisecond, b.Deadline())
	b.Expire(b.Deadline())
	require.Equal(t, CauseDeadline, b.nextEvent(EventUnreachable).Cause)
}

// TestNoRoute: a message that the host cannot send ends the operation that it was to start,
// and nothing else.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	noRoute := func(n int) {
		list := a.sent()
		require.Len(t, list, n)
		for _, d := range list {
			a.NoRoute(&d, w.Now)
		}
	}
	_, err := a.Connect(a.params(b), w.Now)
	require.NoError(t, err)
	noRoute(1)
	require.Equal(t, CauseNoRoute, a.nextEvent(EventUnreachable).Cause)
	a.nextEvent(EventTimeWaitExit)
	noRoute(1) // the REJ, for a peer that may have heard of it
	_, err = a.Resolve(ResolveParams{Service: testDatagrams, Path: a.pathTo(b)}, w.Now)
	require.NoError(t, err)
	noRoute(1)
	require.Equal(t, CauseNoRoute, a.nextEvent(EventUnreachable).Cause)
	a.requireEmpty()

	// A route that was there may come back.
	_, err = a.Connect(a.params(b), w.Now)
	require.NoError(t, err)
	_, err = a.Resolve(ResolveParams{Service: testDatagrams, Path: a.pathTo(b)}, w.Now)
	require.NoError(t, err)
	require.Len(t, a.sent(), 2)
	w.Now += 3 * time.Second
	a.Expire(w.Now)
	noRoute(2)
	a.requireNoEvent()

	a.NoRoute(&Datagram{}, w.Now)
	a.requireNoEvent()
}

// TestUnanswered: the peers of an application that never answers are rejected in the end.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	w.tracing = true
	b.listen(ListenParams{Service: testService})
	p := a.params(b)
	p.MaxCMRetries = 2
	a.connect(p)
	w.run(2 * time.Minute)
	require.Equal(t, "R 3", a.reports())
	require.Equal(t, "request, U no response from the application in time", b.reports())
	require.Equal(t, []string{"A REQ", "A REQ", "B MRA", "B REJ"}, w.trace)
	a.requireEmpty()
	b.requireEmpty()
	require.ErrorIs(t, b.all[0].Conn.Accept(AcceptParams{QPN: 2}, w.Now), verbs.ErrState)

	for shorter, told := range map[string][2]string{
		"A": {"C, U no response from the application in time", "request, R 4"},
		"B": {"C, R 4", "request, U no response from the peer"},
	} {
		w, a, b = pair(t, faults{})
		w.hosts[map[string]*host{"A": a, "B": b}[shorter].address].config.HandshakeTimeout /= 2
		b.answerAll()
		b.listen(ListenParams{Service: testService})
		a.connect(a.params(b))
		w.run(2 * time.Minute)
		require.Equal(t, told, [2]string{a.reports(), b.reports()})
	}
	a.requireEmpty()
	b.requireEmpty()
}

// TestClose closes a connection in each state: only its last event follows.
func TestClose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state State
		other string // what the other end is told
	}{
		{StateREQSent, "request, R 4"},
		{StateREQReceived, "R 28"},
		{StateREPReceived, "request, R 28"},
		{StateREPSent, "R 28"},
		{StateEstablished, "request, E, D disconnected by the peer"},
		{StateDREQSent, "request, E, D disconnected by the peer"},
		{StateTimeWait, "request, E, D disconnected by the peer"},
	} {
		t.Run(c.state.String(), func(t *testing.T) {
			t.Parallel()
			w, a, b := pair(t, faults{})
			b.listen(ListenParams{Service: testService})
			var closer *Conn
			switch c.state {
			case StateREQSent, StateREPReceived:
				closer = a.connect(a.params(b))
				w.Pass(time.Millisecond)
				if c.state == StateREPReceived {
					b.accept(b.all[0].Conn)
					w.Pass(time.Millisecond)
				}
			case StateREQReceived, StateREPSent:
				a.connect(a.params(b))
				w.Pass(time.Millisecond)
				closer = b.all[0].Conn
				if c.state == StateREPSent {
					w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool { return attribute == mad.AttrREP }
					b.accept(closer)
				}
			default:
				a.answerAll()
				b.answerAll()
				closer = a.connect(a.params(b))
				w.Pass(time.Millisecond)
				if c.state > StateEstablished {
					require.NoError(t, closer.Disconnect(DisconnectParams{}, w.Now))
				}
				if c.state == StateTimeWait {
					a.settle()
					w.Pass(time.Millisecond)
				}
			}
			require.Equal(t, c.state, closer.State())
			closing, other := a, b
			if closer.Passive() {
				closing, other = b, a
			}
			told := len(closing.all)
			closer.Close(w.Now)
			closer.Close(w.Now)
			closing.settle()
			w.run(3 * time.Minute)
			require.Equal(t, c.other, other.reports())
			require.Len(t, closing.all, told+1)
			require.Equal(t, EventTimeWaitExit, closing.all[told].Type)
			a.requireEmpty()
			b.requireEmpty()
			closer.Close(w.Now)
			require.Empty(t, closing.sent())
		})
	}
}

// TestCloseDropsEvents: an event that waits is not delivered after Close.
func TestCloseDropsEvents(t *testing.T) {
	t.Parallel()
	w, a, b, active, passive := established(t)
	b.stopped = true
	require.NoError(t, active.Disconnect(DisconnectParams{}, w.Now))
	a.settle()
	w.run(time.Minute)
	require.Equal(t, 2, b.Entries().Events)
	passive.Close(w.Now)
	b.nextEvent(EventTimeWaitExit)
	b.requireNoEvent()
}

// TestListenerClose: requests that have been reported stay, others are refused.
func TestListenerClose(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, faults{})
	a.answerAll()
	l := b.listen(ListenParams{Service: testService})
	datagrams := Service{PortSpaceUDP, 7}
	lu := b.listen(ListenParams{Service: datagrams, Transport: verbs.UD})
	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	b.stopped = true
	for range 5 {
		a.connect(a.params(b))
	}
	for range 3 {
		_, err := a.Resolve(ResolveParams{Service: datagrams, Path: a.pathTo(b)}, w.Now)
		require.NoError(t, err)
	}
	a.settle()
	w.Pass(time.Millisecond)
	require.Equal(t, 6, l.HalfOpen())
	require.Equal(t, 3, lu.HalfOpen())
	l.Close(w.Now)
	lu.Close(w.Now)
	b.stopped = false
	b.settle()
	w.Pass(time.Millisecond)
	require.Equal(t, "R 8, R 8, R 8, R 8, R 8", a.reports())
	rejected := 0
	for _, e := range a.all {
		if e.Type == EventSIDRResponse {
			require.Equal(t, mad.SIDRNotSupported, e.Status)
			rejected++
		}
	}
	require.Equal(t, 3, rejected)
	require.Equal(t, "request", b.reports())
	b.accept(b.all[0].Conn)
	w.Pass(time.Millisecond)
	require.Equal(t, StateEstablished, b.all[0].Conn.State())
	require.Zero(t, l.HalfOpen()+lu.HalfOpen()+b.Entries().HalfOpen)
	a.connect(a.params(b))
	w.Pass(2 * earlyWait)
	require.Equal(t, uint64(1), b.Counters().NoService)
	b.listen(ListenParams{Service: testService})
}

// TestManagerClose: when a process exits, its peers are notified once.
func TestManagerClose(t *testing.T) {
	t.Parallel()
	w, a, b, _, passive := established(t)
	b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
	a.listen(ListenParams{Service: testService})
	w.tracing = true
	b.app = nil
	a.connect(a.params(b)) // a request that waits at B
	b.connect(b.params(a)) // one that waits at A
	resolution := a.resolve(b)
	b.resolve(a)
	w.Pass(100 * time.Millisecond)
	require.Equal(t, 2, b.Entries().HalfOpen)
	b.Close(w.Now)
	b.Close(w.Now)
	require.Equal(t, Entries{}, b.Entries())
	b.settle()
	b.Expire(w.Now + time.Hour)
	w.Pass(10 * time.Second)
	require.Equal(t, "D disconnected by the peer, R 28, R 28, request", sorted(a))
	require.Zero(t, b.Counters().Retransmitted)
	require.ErrorIs(t, passive.Disconnect(DisconnectParams{}, w.Now), verbs.ErrState)
	_, err := b.Listen(ListenParams{Service: testService})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = b.Connect(b.params(a), w.Now)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = b.Resolve(ResolveParams{Service: testService, Path: b.pathTo(a)}, w.Now)
	require.ErrorIs(t, err, verbs.ErrClosed)
	received := b.Counters().Received
	w.forge(b, foreigner, request(b, 1))
	require.Equal(t, received, b.Counters().Received)
	resolution.Close()
	w.run(time.Minute)
	a.requireEmpty()
}

// sorted returns the events of a host in a fixed order.
func sorted(h *host) string {
	list := strings.Split(h.reports(), ", ")
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// TestWrongCalls: calls in the wrong state or with wrong arguments.
func TestWrongCalls(t *testing.T) {
	t.Parallel()
	w, a, b, active, passive := established(t)
	for _, c := range []*Conn{active, passive} {
		require.ErrorIs(t, c.Accept(AcceptParams{QPN: 2}, w.Now), verbs.ErrState)
		require.ErrorIs(t, c.Prepare(AcceptParams{QPN: 2}), verbs.ErrState)
		require.ErrorIs(t, c.Establish(nil, w.Now), verbs.ErrState)
		err := c.Reject(RejectParams{}, w.Now)
		require.ErrorIs(t, err, verbs.ErrState)
		require.ErrorContains(t, err, "it is in state Established, must be in REQ Received or REP Received or REP Sent")
		require.ErrorIs(t, c.Disconnect(DisconnectParams{PrivateData: make([]byte, 221)}, w.Now), verbs.ErrInvalid)
		require.Equal(t, StateEstablished, c.State())
	}
	for i, change := range []func(p *ConnectParams){
		func(p *ConnectParams) { p.QPN = 1 },
		func(p *ConnectParams) { p.QPN = 1 << 24 },
		func(p *ConnectParams) { p.PSN = 1 << 24 },
		func(p *ConnectParams) { p.Transport = verbs.UD },
		func(p *ConnectParams) { p.PathMTU = 1500 },
		func(p *ConnectParams) { p.RetryCount = 8 },
		func(p *ConnectParams) { p.RNRRetry = 8 },
		func(p *ConnectParams) { p.AckTimeout = 32 },
		func(p *ConnectParams) { p.ResponseTimeout = 32 },
		func(p *ConnectParams) { p.MaxCMRetries = 16 },
		func(p *ConnectParams) { p.PrivateData = make([]byte, 57) },
		func(p *ConnectParams) { p.Path = Path{} },
		func(p *ConnectParams) { p.Path.Remote = w.attach("6", "[fd00::1]:1", Config{}).address },
	} {
		p := a.params(b)
		change(&p)
		_, err := a.Connect(p, w.Now)
		require.ErrorIs(t, err, verbs.ErrInvalid, i)
		require.ErrorContains(t, err, "connect to port 7471", i)
	}
	for i, p := range []ListenParams{
		{}, {Service: testService, Transport: 9}, {Service: testService, Backlog: -1},
	} {
		_, err := a.Listen(p)
		require.ErrorIs(t, err, verbs.ErrInvalid, i)
	}
	_, err := b.Listen(ListenParams{Service: testService})
	require.ErrorIs(t, err, verbs.ErrInUse)

	w.forge(b, foreigner, request(b, 1))
	c := b.nextEvent(EventConnectRequest).Conn
	for i, p := range []AcceptParams{
		{QPN: 1}, {QPN: 1 << 24}, {QPN: 2, PSN: 1 << 24}, {QPN: 2, RNRRetry: 8}, {QPN: 2, PrivateData: make([]byte, 197)},
	} {
		require.ErrorIs(t, c.Accept(p, w.Now), verbs.ErrInvalid, i)
	}
	require.ErrorIs(t, c.Reject(RejectParams{PrivateData: make([]byte, 149)}, w.Now), verbs.ErrInvalid)
	require.ErrorIs(t, c.Reject(RejectParams{Info: make([]byte, 73)}, w.Now), verbs.ErrInvalid)
	require.ErrorIs(t, c.Disconnect(DisconnectParams{}, w.Now), verbs.ErrState)
	_, _, err = c.QPAttr(verbs.QPInitialized)
	require.NoError(t, err)
	require.Empty(t, b.sent())

	a.connect(a.params(b))
	w.Pass(time.Millisecond)
	b.sent()
	dial, err := a.Connect(a.params(b), w.Now)
	require.NoError(t, err)
	w.forge(a, b.address.String(), &mad.REP{TransactionID: dial.transactionID, LocalCommID: 5, RemoteCommID: dial.localID, QPN: 5})
	require.ErrorIs(t, dial.Establish(make([]byte, 225), w.Now), verbs.ErrInvalid)
	require.NoError(t, dial.Establish(make([]byte, 224), w.Now))
}

// TestNames: names of causes and states in error texts.
func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "port 7471", testService.String())
	require.Equal(t, "datagram port 7", Service{PortSpaceUDP, 7}.String())
	require.Equal(t, "port 7 of port space 0x013f", Service{0x013f, 7}.String())
	require.Equal(t, "TimeWait", StateTimeWait.String())
	require.Equal(t, "state 99", State(99).String())
	require.Equal(t, "SIDR response", EventSIDRResponse.String())
	require.Equal(t, "event 0", EventType(0).String())
	require.Equal(t, "cause 0", Cause(0).String())
	require.Equal(t, "the peer no longer has the connection", CauseStale.String())
	for c := CauseTimeout; c <= CauseStale; c++ {
		require.NotEmpty(t, c.String(), "cause %d", uint8(c))
	}
}
