package oob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

func made[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// places are where servers listen, by the ways that can.
var waysToTest = []string{"tcp:127.0.0.1:0", "cm:localhost"}

func forEachWay(t *testing.T, test func(t *testing.T, at string)) {
	for _, at := range waysToTest {
		way, _, _ := strings.Cut(at, ":")
		if way == "cm" {
			at = "cm:" + freeCM()
		}
		t.Run(way, func(t *testing.T) { test(t, at) })
	}
}

// reaches is the way to a listener, when it listens.
func wayTo(t testing.TB, at string, l *oob.Listener) string {
	t.Helper()
	require.Eventually(t, func() bool { return !strings.HasSuffix(l.Addr(), ":0") }, 5*time.Minute, time.Millisecond)
	return at[:strings.Index(at, ":")+1] + l.Addr()
}

// newServer runs a server that lets its clients write to its memory, 64 bytes, and
// returns where it is, and how to stop it. met is called for each client.
func newServer(t testing.TB, at string, connections int, clients string, met func(client string, a *oob.Answer) error) (way string, memory *mmap.Map, stop func()) {
	t.Helper()
	return newServerWith(t, at, connections, oob.Config{Name: "server", Peer: clients}, met)
}

func newServerWith(t testing.TB, at string, connections int, cfg oob.Config, met func(client string, a *oob.Answer) error) (way string, memory *mmap.Map, stop func()) {
	t.Helper()
	dev, closeDevice := openDevice(t, cfg.Name)
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: connections})
	require.NoError(t, err)
	memory, err = mmap.Alloc(dev, 64, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	l, err := oob.Listen(at, cfg)
	require.NoError(t, err)
	require.NoError(t, l.Serve(r, oob.Offer{Maps: []*mmap.Map{memory}, Data: []byte("welcome")}, met))
	assert.ErrorIs(t, l.Serve(r, oob.Offer{}, met), oob.ErrInUse)
	require.NoError(t, r.Start())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()
	return wayTo(t, at, l), memory, sync.OnceFunc(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
		assert.NoError(t, l.Close())
		assert.NoError(t, l.Close())
		assert.ErrorIs(t, l.Serve(r, oob.Offer{}, met), oob.ErrClosed)
		assert.NoError(t, engine.Close())
		assert.NoError(t, closeDevice())
	})
}

// visit writes a byte to the server's memory, and ends.
func visit(t testing.TB, way, name string, at int) error {
	p := newProgram(t, must(oob.Parse(way)), oob.Config{Name: name, Peer: "server"}, rdma.Config{EndWithLastConnection: true})
	local, err := mmap.Alloc(p.dev, 64, mmap.LocalReadWrite|mmap.RemoteRead)
	require.NoError(t, err)
	local.Bytes()[0] = byte(at + 1)
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		p.peer.Exchange(context.Background(), p.rdma, oob.Offer{Maps: []*mmap.Map{local}}, func(a *oob.Answer, err error) {
			if err != nil {
				p.rdma.Fail(err)
				return
			}
			assert.Equal(t, "welcome", string(a.Data))
			p.rdma.OnStateChange(func(_, next pe.State) {
				if next != pe.Running {
					return
				}
				shared, err := p.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
				assert.NoError(t, err)
				task, err := shared.Write(a.Connections[0], bufinv.Source(local, 0, 1), bufinv.Target(a.Maps[0], at, 1))
				if err == nil {
					err = pe.SubmitOrFree(task, nil, func(t *rdma.Task, err error) {
						p.rdma.Fail(errors.Join(err, t.Free()))
						p.rdma.Stop()
					})
				}
				p.rdma.Fail(err)
			})
		})
	})
	return p.run(forever(t))
}

func must(w oob.Way, err error) oob.Way {
	if err != nil {
		panic(err)
	}
	return w
}

// Clients come at the same time and one after another, more than the server has
// connections for at a time, some under one name.
func TestListener(t *testing.T) { forEachWay(t, testListener) }

func testListener(t *testing.T, at string) {
	var mu sync.Mutex
	met := map[string]int{}
	var theirs []*mmap.Map
	way, memory, stop := newServer(t, at, 3, "", func(client string, a *oob.Answer) error {
		mu.Lock()
		defer mu.Unlock()
		met[client]++
		assert.Len(t, a.Connections, 1)
		theirs = append(theirs, a.Maps...)
		return nil
	})
	defer stop()
	for round := range 2 {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				assert.NoError(t, visit(t, way, fmt.Sprintf("client%d", i/2), 8*round+i))
			})
		}
		wg.Wait()
	}
	for i := range 16 {
		assert.Equal(t, byte(i+1), memory.Bytes()[i], i)
	}
	stop()
	assert.Equal(t, map[string]int{"client0": 4, "client1": 4, "client2": 4, "client3": 4}, met)
	assert.Len(t, theirs, 16)
	for _, m := range theirs {
		assert.ErrorIs(t, m.Friends(friend.Package{}).Hold(), mmap.ErrClosed)
	}
}

// Whoever does not belong is rejected, and does not disturb the others.
func TestListenerRejects(t *testing.T) {
	way, _, stop := newServer(t, waysToTest[0], 1, "client", func(client string, _ *oob.Answer) error {
		assert.Equal(t, "client", client)
		return nil
	})
	defer stop()
	silent, err := net.Dial("tcp", way[len("tcp:"):])
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	noise, err := net.Dial("tcp", way[len("tcp:"):])
	require.NoError(t, err)
	_, err = noise.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	defer func() { _ = noise.Close() }()
	_, err = noise.Read(make([]byte, 1))
	assert.Error(t, err)

	assert.ErrorIs(t, visit(t, way, "burglar", 0), oob.ErrWrongPeer)
	p := newProgram(t, must(oob.Parse(way)), oob.Config{Name: "client", Peer: "other"}, rdma.Config{})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
		}
	})
	assert.ErrorIs(t, p.run(forever(t)), oob.ErrWrongPeer)
	assert.NoError(t, visit(t, way, "client", 0))
}

// A client that the server rejects learns why, at once, and leaves nothing behind.
func TestListenerRejectsWithReason(t *testing.T) {
	testListenerRejectsWithReason(t, waysToTest[0])
	simulate(t, 3, func(s *sim.Sim) { testListenerRejectsWithReason(s, "cm:"+simCM(s, "server")) })
}

func testListenerRejectsWithReason(t testing.TB, at string) {
	reason := "no room \x1b[2J for " + strings.Repeat("x", 2000)
	way, _, stop := newServer(t, at, 1, "", func(client string, _ *oob.Answer) error {
		if client == "nobody" {
			return errors.New(reason)
		}
		return nil
	})
	defer stop()
	for i := range 3 {
		err := visit(t, way, "nobody", 0)
		assert.ErrorIs(t, err, oob.ErrRejected)
		assert.ErrorContains(t, err, `server: rejected by the peer: "no room \x1b[2J for xxx`)
		assert.Less(t, len(err.Error()), 1200)
		assert.NoError(t, visit(t, way, "somebody", i))
	}
}

// So does one whose offer is not what the server expects.
func TestListenerExpects(t *testing.T) { forEachWay(t, testListenerExpects) }

func testListenerExpects(t *testing.T, at string) {
	server := newProgram(t, must(oob.Parse(waysToTest[0])), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{})
	l, err := oob.Listen(at, oob.Config{Name: "server", Expect: &oob.Expect{Maps: 2}})
	require.NoError(t, err)
	require.NoError(t, l.Serve(server.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		assert.Fail(t, "it was taken")
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.run(ctx) }()
	err = visit(t, wayTo(t, at, l), "client", 0)
	assert.ErrorIs(t, err, oob.ErrRejected)
	assert.ErrorContains(t, err, "client offers a memory map, but this program expects 2 memory maps")
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	assert.NoError(t, l.Close())
}

// The function is called before anything is reported of the connections.
func TestListenerCallsFirst(t *testing.T) { forEachWay(t, testListenerCallsFirst) }

func testListenerCallsFirst(t *testing.T, at string) {
	var mu sync.Mutex
	var states []rdma.ConnectionState
	way, _, stop := newServer(t, at, 1, "", func(client string, a *oob.Answer) error {
		a.Connections[0].SetUserData(client)
		a.Connections[0].Context().OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, "client", conn.UserData())
			states = append(states, state)
		})
		return nil
	})
	defer stop()
	assert.NoError(t, visit(t, way, "client", 0))
	// The client needs only the server's device to end.
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(states) == 3
	}, 5*time.Minute, time.Millisecond)
	stop()
	assert.Equal(t, []rdma.ConnectionState{rdma.Connecting, rdma.Ready, rdma.Closed}, states)
}

func TestListenInvalid(t *testing.T) {
	for _, way := range []string{"dir", "dir:/tmp", "stdio", "pigeon", "tcp:nowhere"} {
		_, err := oob.Listen(way, oob.Config{Name: "server"})
		assert.ErrorIs(t, err, oob.ErrInvalid, way)
	}
	for _, cfg := range []oob.Config{{}, {Name: "-"}, {Name: "server", Peer: "a client"}} {
		_, err := oob.Listen("tcp:127.0.0.1:0", cfg)
		assert.ErrorIs(t, err, oob.ErrInvalid)
	}
	l, err := oob.Listen("tcp:127.0.0.1:0", oob.Config{Name: "server"})
	require.NoError(t, err)
	_, err = oob.Listen("tcp:"+l.Addr(), oob.Config{Name: "server"})
	assert.ErrorContains(t, err, "address already in use")
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	r, err := rdma.New(dev, rdma.Config{})
	require.NoError(t, err)
	assert.ErrorIs(t, l.Serve(r, oob.Offer{}, nil), pe.ErrNotConnected)
	require.NoError(t, l.Close())
}

// A client that does what it may not fails its connection, and leaves its place to the next.
func TestListenerClosesFailedConnections(t *testing.T) {
	forEachWay(t, testListenerClosesFailedConnections)
}

func testListenerClosesFailedConnections(t *testing.T, at string) {
	var log bytes.Buffer
	way, _, stop := newServerWith(t, at, 1, oob.Config{Name: "server", Log: zerolog.New(&log)}, func(string, *oob.Answer) error { return nil })
	defer stop()
	p := newProgram(t, must(oob.Parse(way)), oob.Config{Name: "burglar", Peer: "server"}, rdma.Config{CloseTimeout: rdma.None})
	local, err := mmap.Alloc(p.dev, 64, mmap.LocalReadWrite)
	require.NoError(t, err)
	var conn *rdma.Connection
	var remote *mmap.Map
	p.rdma.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { p.rdma.Fail(err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			p.peer.Connect(p.rdma, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; p.rdma.Fail(err) })
		case pe.Running:
			shared, err := p.rdma.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
			assert.NoError(t, err)
			// The forged map ends later than the server's.
			forged := made(mmap.FromKey(p.dev, remote.Addr(), 8192, remote.RKey(), mmap.RemoteWrite))
			task, err := shared.Write(conn, bufinv.Source(local, 0, 8), bufinv.Target(forged, 8000, 8))
			p.rdma.Fail(pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) { p.rdma.Fail(errors.Join(err, t.Free())) }))
		}
	})
	require.Error(t, p.run(forever(t)))
	require.NoError(t, visit(t, way, "client", 0))
	stop()
	assert.Regexp(t, `"client":"burglar"[^\n]*"a client has connected"(?s:.*)"level":"warn","client":"burglar"[^\n]*request of the peer refused[^\n]*"a client was lost"`, log.String())
	assert.Regexp(t, `"level":"info","client":"client"[^\n]*"a client has disconnected"`, log.String())
	assert.NotRegexp(t, `"client":"burglar"[^\n]*"a client has disconnected"`, log.String())
}

// observedServer is a server of one connection, whose engine the test drives. It notes what
// is reported of connections, and whether their user data is set.
type observedServer struct {
	*program
	at       string
	listener *oob.Listener
	log      bytes.Buffer
	mu       sync.Mutex
	reports  []string
}

func newObservedServer(t *testing.T, at string, cfg oob.Config, rcfg rdma.Config) *observedServer {
	t.Helper()
	s := &observedServer{at: at, program: newProgram(t, must(oob.Parse(waysToTest[0])), oob.Config{Name: "unused", Peer: "nobody"}, rcfg)}
	cfg.Name, cfg.Log = "server", zerolog.New(&s.log)
	var err error
	s.listener, err = oob.Listen(at, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.listener.Close()) })
	s.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reports = append(s.reports, fmt.Sprintf("%v, user data %v", state, conn.UserData()))
	})
	return s
}

func (s *observedServer) way() string { return wayTo(s.t, s.at, s.listener) }

// serve runs the server while f runs.
func (s *observedServer) serve(f func()) {
	require.NoError(s.t, s.rdma.Start())
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error)
	go func() { ended <- s.engine.Run(ctx) }()
	f()
	cancel()
	assert.ErrorIs(s.t, <-ended, context.Canceled)
}

// Nothing is reported of a client whose offer does not fit: there have been no connections.
func TestListenerChecksBeforeItExports(t *testing.T) {
	forEachWay(t, testListenerChecksBeforeItExports)
}

func testListenerChecksBeforeItExports(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{Expect: &oob.Expect{Maps: 2}}, rdma.Config{})
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		assert.Fail(t, "it was admitted")
		return nil
	}))
	s.serve(func() { assert.ErrorIs(t, visit(t, s.way(), "client", 0), oob.ErrRejected) })
	assert.Empty(t, s.reports)
}

// Connections whose addresses do not fit are reported Closed, without user data.
func TestListenerOtherFamily(t *testing.T) {
	s := newObservedServer(t, waysToTest[0], oob.Config{}, rdma.Config{})
	table, err := s.dev.GIDs(1)
	require.NoError(t, err)
	if len(table) < 2 {
		t.Skip("no IPv6 on the loopback interface")
	}
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		assert.Fail(t, "it was admitted")
		return nil
	}))
	client := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: "client", Peer: "server"}, rdma.Config{Path: rdma.PathConfig{GIDIndex: new(1)}})
	client.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			client.peer.Connect(client.rdma, nil)
		}
	})
	s.serve(func() {
		err := client.run(forever(t))
		assert.ErrorIs(t, err, oob.ErrRejected)
		assert.ErrorContains(t, err, "one is IPv4 and one IPv6")
	})
	assert.Equal(t, []string{"Closed, user data <nil>"}, s.reports)
}

// A client learns at once what will not pass: here the server's map cannot be exported.
func TestListenerCannotExport(t *testing.T) { forEachWay(t, testListenerCannotExport) }

func testListenerCannotExport(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{}, rdma.Config{})
	private, err := mmap.Alloc(s.dev, 64, mmap.LocalReadWrite)
	require.NoError(t, err)
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{Maps: []*mmap.Map{private}}, func(string, *oob.Answer) error { return nil }))
	s.serve(func() {
		err := visit(t, s.way(), "client", 0)
		assert.ErrorIs(t, err, oob.ErrRejected)
		assert.ErrorContains(t, err, "export memory map")
	})
	assert.Empty(t, s.reports)
}

// Clients wait for a connection, and the log says so once, however often they try.
func TestListenerFull(t *testing.T) { forEachWay(t, testListenerFull) }

func testListenerFull(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{}, rdma.Config{MaxConnections: 1})
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error { return nil }))
	simple := func(name string, running func(p *program)) error {
		p := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: name, Peer: "server"}, rdma.Config{EndWithLastConnection: true})
		p.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				p.peer.Connect(p.rdma, nil)
			case pe.Running:
				running(p)
			}
		})
		return p.run(forever(t))
	}
	s.serve(func() {
		var waiting sync.WaitGroup
		assert.NoError(t, simple("first", func(p *program) {
			for i := range 3 {
				waiting.Go(func() {
					assert.NoError(t, simple(fmt.Sprintf("waiting%d", i), func(p *program) { p.rdma.Stop() }))
				})
			}
			time.AfterFunc(300*time.Millisecond, func() { _ = p.engine.Do(func() { p.rdma.Stop() }) })
		}))
		waiting.Wait()
	})
	// Once before each of those that had to wait, at most.
	assert.LessOrEqual(t, strings.Count(s.log.String(), "clients must wait"), 4)
	assert.NotContains(t, s.log.String(), "was rejected")
}

// A function that panics leaves no connection behind.
func TestListenerPanic(t *testing.T) { forEachWay(t, testListenerPanic) }

func testListenerPanic(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{}, rdma.Config{MaxConnections: 1})
	clients := 0
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		if clients++; clients == 1 {
			panic("out of paper")
		}
		return nil
	}))
	require.NoError(t, s.rdma.Start())
	client := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: "client", Peer: "server"}, rdma.Config{})
	client.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			client.peer.Connect(client.rdma, nil)
		case pe.Running:
			client.rdma.Stop()
		}
	})
	visited := make(chan error)
	go func() { visited <- client.run(forever(t)) }() // it tries again after the panic
	ctx, cancel := context.WithCancel(t.Context())
	assert.PanicsWithValue(t, "out of paper", func() { _ = s.engine.Run(ctx) })
	ended := make(chan error)
	go func() { ended <- s.engine.Run(ctx) }()
	assert.NoError(t, <-visited)
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	assert.Equal(t, 2, clients)
}

// A listener outlives its context: clients that come later do no harm, and it can be closed.
func TestListenerAfterItsContext(t *testing.T) { forEachWay(t, testListenerAfterItsContext) }

func testListenerAfterItsContext(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{}, rdma.Config{})
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		assert.Fail(t, "it was admitted")
		return nil
	}))
	require.NoError(t, s.rdma.Close())
	if strings.HasPrefix(at, "tcp:") { // by connection manager, the context has listened
		ctx, cancel := context.WithCancel(forever(t))
		defer cancel()
		turnedAway := func(line string) {
			assert.Contains(t, line, "the responder closed the connection")
			cancel()
		}
		client := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: "client", Peer: "server", Notify: turnedAway}, rdma.Config{})
		client.rdma.OnStateChange(func(_, next pe.State) {
			if next == pe.Starting {
				client.peer.Connect(client.rdma, nil)
			}
		})
		require.ErrorIs(t, client.run(ctx), context.Canceled)
	}
	require.NoError(t, s.listener.Close())
}

func TestServeInvalidConnections(t *testing.T) {
	s := newObservedServer(t, waysToTest[0], oob.Config{}, rdma.Config{MaxConnections: 2})
	for _, n := range []int{-1, 3} {
		err := s.listener.Serve(s.rdma, oob.Offer{Connections: n}, func(string, *oob.Answer) error { return nil })
		assert.ErrorIs(t, err, oob.ErrInvalid)
		assert.ErrorContains(t, err, "give 1 to 2")
	}
}

// Where only some of the connections of a client would fit, none is made.
func TestListenerAllConnectionsOrNone(t *testing.T) { forEachWay(t, testListenerAllConnectionsOrNone) }

func testListenerAllConnectionsOrNone(t *testing.T, at string) {
	s := newObservedServer(t, at, oob.Config{}, rdma.Config{MaxConnections: 2})
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{Connections: 2}, func(string, *oob.Answer) error { return nil }))
	ctx, cancel := context.WithCancel(t.Context())
	client := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: "client", Peer: "server"}, rdma.Config{MaxConnections: 2})
	client.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			client.peer.Exchange(ctx, client.rdma, oob.Offer{Connections: 2}, nil)
		}
	})
	require.NoError(t, s.rdma.Start())
	_, _, err := s.rdma.Export() // takes one of the two
	require.NoError(t, err)
	visited := make(chan error)
	go func() { visited <- client.run(ctx) }()
	running, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	assert.ErrorIs(t, s.engine.Run(running), context.DeadlineExceeded)
	cancel()
	assert.ErrorIs(t, <-visited, context.Canceled)
	for _, r := range s.reports { // the one above ends with the server
		assert.Equal(t, "Closed, user data <nil>", r)
	}
	assert.LessOrEqual(t, len(s.reports), 1)
}
