package rdma_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// dialRig are contexts that dial each other, on devices of their own and one engine.
type dialRig struct {
	t       *testing.T
	engine  *pe.Engine
	devices []verbs.Device // for those that are added; then software devices
	added   []*dialContext
	kind    string   // of receiveKinds; empty: Receive
	sim     *sim.Sim // of the devices; nil: they are not simulated
}

func newDialRig(t *testing.T, devices ...verbs.Device) *dialRig {
	return &dialRig{t: t, engine: pe.New(pe.Config{}), devices: devices}
}

// newSimDialRig makes one for two contexts, on the hosts server and client of a simulation.
func newSimDialRig(s *sim.Sim) *dialRig {
	return newDialRig(testOf(s), s.Host("server").Device(), s.Host("client").Device())
}

// dialContext is one of them, with what its callbacks have reported.
type dialContext struct {
	*rdma.Connections
	dev      verbs.Device
	reports  map[*rdma.Connection][]string
	errs     map[*rdma.Connection]error
	ready    []*rdma.Connection
	closed   int
	messages []string
}

func (cs *dialRig) add(cfg rdma.Config) *dialContext {
	if len(cs.devices) == 0 {
		return cs.addOn(openSoft(cs.t), cfg)
	}
	dev := cs.devices[0]
	cs.devices = cs.devices[1:]
	return cs.addOn(dev, cfg)
}

// close closes all contexts before the first device, so that no connection manager waits for
// the answer of a peer that is gone.
func (cs *dialRig) close() {
	for _, c := range cs.added {
		assert.NoError(cs.t, c.Close())
	}
	cs.added = nil
}

func (cs *dialRig) addOn(dev verbs.Device, cfg rdma.Config) *dialContext {
	cfg.Engine = cs.engine
	cs.sim = simulationOf(dev)
	c := &dialContext{dev: dev, reports: make(map[*rdma.Connection][]string), errs: make(map[*rdma.Connection]error)}
	var err error
	c.Connections, err = rdma.New(dev, cfg)
	require.NoError(cs.t, err)
	cs.added = append(cs.added, c)
	cs.t.Cleanup(cs.close)
	require.NoError(cs.t, receiveKinds[cmp.Or(cs.kind, "Receive")](c.Connections, 16, 64, func(m *rdma.Message) { c.messages = append(c.messages, string(m.Bytes())) }))
	c.OnConnection(func(conn *rdma.Connection, s rdma.ConnectionState, err error) {
		c.reports[conn] = append(c.reports[conn], s.String())
		if err != nil {
			c.errs[conn] = err
		}
		switch s {
		case rdma.Ready:
			c.ready = append(c.ready, conn)
		case rdma.Closed:
			c.closed++
		}
	})
	return c
}

func (cs *dialRig) start(list ...*dialContext) {
	for _, c := range list {
		require.NoError(cs.t, c.Start())
	}
}

func (cs *dialRig) until(what string, done func() bool) {
	cs.t.Helper()
	ctx, cancel := context.WithTimeout(cs.t.Context(), 5*time.Minute)
	defer cancel()
	for idle := 0; !done(); idle++ {
		require.NoError(cs.t, ctx.Err(), what)
		if n, _ := cs.engine.Progress(); n > 0 {
			idle = 0
		} else if cs.sim != nil {
			pauseSimulated(cs.sim, idle)
		}
	}
}

// send sends a message.
func (cs *dialRig) send(from *dialContext, conn *rdma.Connection, text string) {
	cs.t.Helper()
	shared := anyPool(from)
	m := must(mmap.New(from.dev, mmap.Config{Memory: []byte(text), Permissions: mmap.LocalReadWrite}))
	defer func() { assert.NoError(cs.t, m.Close()) }()
	task := must(shared.Send(conn, bufinv.Source(m, 0, len(text))))
	var result error
	done := false
	require.NoError(cs.t, pe.SubmitOrFree(task, nil, func(task *rdma.Task, err error) {
		done, result = true, err
		_ = task.Free()
	}))
	cs.until("sent", func() bool { return done })
	require.NoError(cs.t, result)
}

func TestDial(t *testing.T) { testDial(t, newDialRig(t)) }

func testDial(t *testing.T, cs *dialRig) {
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server)
	var request *rdma.ConnectRequest
	l, err := server.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { request = q }})
	require.NoError(t, err)
	require.NotZero(t, l.Addr().Port())
	cs.until("the server runs without waiting for peers", func() bool { return server.State() == pe.Running })

	cs.start(client)
	addr := netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port())
	conn, err := client.Dial(addr.String(), rdma.DialConfig{PrivateData: []byte("let me in")})
	require.NoError(t, err)
	assert.Equal(t, rdma.Connecting, conn.State())
	assert.Contains(t, conn.String(), addr.String())
	cs.until("requested", func() bool { return request != nil })
	assert.Equal(t, append([]byte("let me in"), make([]byte, 47)...), request.PrivateData())
	assert.Equal(t, addr, request.LocalAddr())
	assert.Equal(t, client.GID().GID.Addr(), request.RemoteAddr().Addr())
	assert.Same(t, l, request.Listener())
	assert.Equal(t, pe.Starting, client.State(), "it waits for the connection")

	accepted, err := request.Accept(rdma.AcceptConfig{PrivateData: []byte("welcome")})
	require.NoError(t, err)
	_, err = request.Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotReady)
	require.ErrorIs(t, request.Reject(nil), rdma.ErrNotReady)
	cs.until("both are Ready", func() bool {
		return conn.State() == rdma.Ready && accepted.State() == rdma.Ready && client.State() == pe.Running
	})
	assert.Equal(t, "welcome", string(bytes.TrimRight(conn.AcceptData(), "\x00")))
	assert.Equal(t, accepted.QPN(), conn.PeerQPN())
	assert.Equal(t, conn.QPN(), accepted.PeerQPN())
	assert.Equal(t, addr, conn.PeerAddr())
	assert.Equal(t, conn.LocalAddr(), accepted.PeerAddr())
	assert.Equal(t, addr, accepted.LocalAddr())
	assert.EqualValues(t, 4096, conn.MTU())
	assert.Positive(t, conn.MaxReadAtomic())

	cs.send(client, conn, "from the client")
	cs.send(server, accepted, "from the server")
	cs.until("both have come", func() bool { return len(server.messages) == 1 && len(client.messages) == 1 })
	assert.Equal(t, []string{"from the client"}, server.messages)
	assert.Equal(t, []string{"from the server"}, client.messages)

	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	cs.send(client, conn, "established connections go on")
	require.NoError(t, conn.Close())
	cs.until("both are closed", func() bool {
		return len(server.List())+len(client.List()) == 0 && len(client.reports[conn]) == 3
	})
	cs.until("reported", func() bool { return len(server.reports[accepted]) == 3 })
	assert.Equal(t, []string{"Connecting", "Ready", "Closed"}, client.reports[conn])
	assert.Equal(t, []string{"Connecting", "Ready", "Closed"}, server.reports[accepted])
	assert.ErrorIs(t, server.errs[accepted], rdma.ErrPeerClosed)
	assert.NoError(t, client.errs[conn])
	assert.Len(t, server.messages, 2)
}

// listen has a server listen, on an address of its own that is returned.
func (cs *dialRig) listen(server *dialContext, cfg rdma.ListenConfig) (*rdma.Listener, string) {
	cs.t.Helper()
	l, err := server.Listen(":0", cfg)
	require.NoError(cs.t, err)
	return l, netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String()
}

func TestDialIsRejected(t *testing.T) { testDialIsRejected(t, newDialRig(t)) }

func testDialIsRejected(t *testing.T, cs *dialRig) {
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		require.ErrorIs(t, q.Reject(make([]byte, 149)), rdma.ErrRange)
		_, err := q.Accept(rdma.AcceptConfig{PrivateData: make([]byte, 197)})
		require.ErrorIs(t, err, rdma.ErrRange)
		require.NoError(t, q.Reject([]byte("not today")))
		require.ErrorIs(t, q.Reject(nil), rdma.ErrNotReady)
		require.NoError(t, q.Err())
	}})
	conn, err := client.Dial(addr, rdma.DialConfig{})
	require.NoError(t, err)
	cs.until("rejected", func() bool { return conn.State() == rdma.Failed && client.State() == pe.Running })
	require.ErrorIs(t, conn.Err(), rdma.ErrRejected)
	var failure *verbs.CMError
	require.ErrorAs(t, conn.Err(), &failure)
	assert.Equal(t, verbs.CMRejectConsumer, failure.Reason)
	assert.Equal(t, "not today", string(bytes.TrimRight(failure.PrivateData, "\x00")))
	assert.Empty(t, server.List())
}

// A client that comes before its server tries again; one that asks once fails.
func TestDialBeforeListen(t *testing.T) { sim.Check(t, 3, testDialBeforeListen) }

func testDialBeforeListen(s *sim.Sim) {
	t := testOf(s)
	cs := newSimDialRig(s)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{MaxConnections: 3})
	cs.start(server, client)
	l, addr := cs.listen(server, rdma.ListenConfig{})
	require.NoError(t, l.Close())
	once, err := client.Dial(addr, rdma.DialConfig{Once: true})
	require.NoError(t, err)
	patient, err := client.Dial(addr, rdma.DialConfig{})
	require.NoError(t, err)
	cs.until("it has failed", func() bool { return once.State() == rdma.Failed })
	require.ErrorIs(t, once.Err(), rdma.ErrNotListening)
	require.NotErrorIs(t, once.Err(), rdma.ErrTimeout)
	// The cause is known if the time is enough for one answer.
	for timeout := 50 * time.Millisecond; ; timeout *= 4 {
		short := must(client.Dial(addr, rdma.DialConfig{Timeout: timeout}))
		cs.until("it has failed", func() bool { return short.State() == rdma.Failed })
		require.ErrorIs(t, short.Err(), rdma.ErrTimeout)
		require.NoError(t, short.Close())
		cs.until("it is closed", func() bool { return client.closed > 0 })
		if client.closed = 0; errors.Is(short.Err(), rdma.ErrNotListening) {
			break
		}
	}
	assert.Equal(t, rdma.Connecting, patient.State())
	_, err = server.Listen(fmt.Sprintf(":%d", l.Addr().Port()), rdma.ListenConfig{PrivateData: []byte("hello")})
	require.NoError(t, err)
	cs.until("connected", func() bool { return patient.State() == rdma.Ready })
	assert.Equal(t, "hello", string(bytes.TrimRight(patient.AcceptData(), "\x00")))
	assert.Equal(t, pe.Running, client.State())
}

// The error is the peer's rejection, whatever failures of attempts came before it.
func TestRejectedAtLast(t *testing.T) { sim.Check(t, 3, testRejectedAtLast) }

func testRejectedAtLast(s *sim.Sim) {
	t := testOf(s)
	cs := newSimDialRig(s)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	l, addr := cs.listen(server, rdma.ListenConfig{})
	require.NoError(t, l.Close())
	conn, once := must(client.Dial(addr, rdma.DialConfig{})), must(client.Dial(addr, rdma.DialConfig{Once: true}))
	cs.until("nobody listened", func() bool { return once.State() == rdma.Failed && conn.DialError() != nil })
	_, err := server.Listen(fmt.Sprintf(":%d", l.Addr().Port()), rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		require.NoError(t, q.Reject([]byte("not you")))
	}})
	require.NoError(t, err)
	cs.until("it has failed", func() bool { return conn.State() == rdma.Failed })
	require.ErrorIs(t, conn.Err(), rdma.ErrRejected)
	var failure *verbs.CMError
	require.ErrorAs(t, conn.Err(), &failure)
	assert.Equal(t, "not you", string(bytes.TrimRight(failure.PrivateData, "\x00")))
	assert.NoError(t, conn.DialError(), "the reason is that of Err")
}

// Requests for which the server has no connection left wait for one.
func TestRequestsWaitForAConnection(t *testing.T) { testRequestsWait(t, newDialRig(t)) }

func testRequestsWait(t *testing.T, cs *dialRig) {
	server, client := cs.add(rdma.Config{MaxConnections: 1}), cs.add(rdma.Config{MaxConnections: 3})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	for range 3 {
		must(client.Dial(addr, rdma.DialConfig{}))
	}
	for n := range 3 {
		cs.until("one of them is connected", func() bool { return len(client.ready) == n+1 })
		cs.send(client, client.ready[n], fmt.Sprint(n))
		require.NoError(t, client.ready[n].Close())
	}
	cs.until("the server is left alone", func() bool { return len(server.messages) == 3 && len(server.List()) == 0 })
}

// A client that gives up while it is being accepted does not use up one of the server's
// MaxConnections, even if the server's program does nothing.
func TestPlacesOfFailedConnections(t *testing.T) { sim.Check(t, 5, testPlacesOfFailedConnections) }

func testPlacesOfFailedConnections(s *sim.Sim) {
	t := testOf(s)
	cs := newSimDialRig(s)
	server, client := cs.add(rdma.Config{MaxConnections: 1}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	fails := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("the server has accepted", func() bool { return len(server.List()) == 1 })
	s.Cut(s.Host("client"), s.Host("server"))
	accepted := server.List()[0]
	require.NoError(t, fails.Close())
	s.Heal()
	works := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("the next one is connected", func() bool { return works.State() == rdma.Ready })
	assert.Equal(t, rdma.Closed, accepted.State())
}

// A request that is accepted later, in another callback, when the peer may have gone.
func TestAcceptLater(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 2}), cs.add(rdma.Config{MaxConnections: 3})
	cs.start(server, client)
	var requests []*rdma.ConnectRequest
	l, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { requests = append(requests, q) }})
	gone := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("requested", func() bool { return len(requests) == 1 })
	must(client.Dial(addr, rdma.DialConfig{}))
	must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("requested", func() bool { return len(requests) == 3 })
	require.NoError(t, gone.Close())
	cs.until("the server knows", func() bool { return requests[0].Err() != nil })
	_, err := requests[0].Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotReady)
	require.ErrorIs(t, err, requests[0].Err())
	must(requests[1].Accept(rdma.AcceptConfig{}))
	cs.until("accepted", func() bool { return len(client.ready) == 1 && len(server.ready) == 1 })
	require.NoError(t, l.Close())
	cs.until("the other is rejected", func() bool { return len(client.List()) == 2 && len(client.errs) == 1 })
	_, err = requests[2].Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotReady)
	require.ErrorContains(t, requests[2].Err(), "listener was closed")
	cs.send(server, server.ready[0], "still here")
	cs.until("received", func() bool { return len(client.messages) == 1 })
}

// A place is taken until Closed is reported: the request stays, and is accepted then.
func TestAcceptWhenFull(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 1}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	var requests []*rdma.ConnectRequest
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { requests = append(requests, q) }})
	must(client.Dial(addr, rdma.DialConfig{}))
	must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("requested", func() bool { return len(requests) == 2 })
	first := must(requests[0].Accept(rdma.AcceptConfig{}))
	_, err := requests[1].Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrFull)
	require.NoError(t, first.Close())
	cs.until("there is room", func() bool { return len(server.List()) == 0 && len(server.reports[first]) > 1 })
	must(requests[1].Accept(rdma.AcceptConfig{}))
	cs.until("connected", func() bool { return len(server.ready) > 0 && server.ready[len(server.ready)-1].State() == rdma.Ready })
}

// Contexts that stop, with connections in every phase, leave nothing, and the peers learn
// of it.
func TestStopWhileConnecting(t *testing.T) {
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			cs := newDialRig(t)
			server, client := cs.add(rdma.Config{MaxConnections: 8}), cs.add(rdma.Config{MaxConnections: 8})
			cs.start(server, client)
			var requests []*rdma.ConnectRequest
			_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { requests = append(requests, q) }})
			for range 3 {
				must(client.Dial(addr, rdma.DialConfig{}))
			}
			cs.until("requested", func() bool { return len(requests) == 3 })
			must(requests[0].Accept(rdma.AcceptConfig{}))
			cs.until("one is Ready", func() bool { return len(server.ready) == 1 && len(client.ready) == 1 })
			must(requests[1].Accept(rdma.AcceptConfig{}))
			must(client.Dial("localhost:1", rdma.DialConfig{}))
			must(client.Dial("192.0.2.1:1", rdma.DialConfig{})) // nobody is there
			stops, other := server, client
			if who == "client" {
				stops, other = client, server
			}
			require.NoError(t, stops.Stop())
			cs.until("stopped", func() bool { return stops.State() == pe.Idle })
			cs.until("the others have ended", func() bool {
				for conn := range maps.Keys(other.reports) {
					if conn.State() == rdma.Ready || conn.State() == rdma.Connecting && conn.PeerQPN() != 0 {
						return false
					}
				}
				return true
			})
			for _, q := range requests { // that the client withdraws them may be on its way
				cs.until("the request has ended", func() bool { return errors.Is(q.Reject(nil), rdma.ErrNotReady) })
			}
		})
	}
}

// A connection by name, and of a context with itself.
func TestDialByName(t *testing.T) {
	cs := newDialRig(t)
	c := cs.add(rdma.Config{MaxConnections: 2})
	cs.start(c)
	l, err := c.Listen(":0", rdma.ListenConfig{})
	require.NoError(t, err)
	must(c.Dial(fmt.Sprintf("localhost:%d", l.Addr().Port()), rdma.DialConfig{}))
	cs.until("both ends are Ready", func() bool { return len(c.ready) == 2 })
	cs.send(c, c.ready[0], "to myself")
	cs.until("received", func() bool { return len(c.messages) == 1 })
	bad, err := c.Dial("localhost.invalid:7471", rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrFull)
	require.Nil(t, bad)
}

func TestDialNoSuchHost(t *testing.T) {
	cs := newDialRig(t)
	c := cs.add(rdma.Config{})
	cs.start(c)
	bad := must(c.Dial("no such host:7471", rdma.DialConfig{}))
	cs.until("failed", func() bool { return bad.State() == rdma.Failed && c.State() == pe.Running })
	require.ErrorContains(t, bad.Err(), "no such host")
}

func TestDialAndListenRefusals(t *testing.T) {
	cs := newDialRig(t)
	c := cs.add(rdma.Config{MaxConnections: 4})
	_, err := c.Dial("127.0.0.1:7471", rdma.DialConfig{})
	require.ErrorIs(t, err, pe.ErrBadState)
	_, err = c.Listen(":7471", rdma.ListenConfig{})
	require.ErrorIs(t, err, pe.ErrBadState)
	cs.start(c)
	for _, addr := range []string{"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:0", ":7471", "::1:7471", "[::1]"} {
		_, err := c.Dial(addr, rdma.DialConfig{})
		require.ErrorIs(t, err, rdma.ErrInvalid, addr)
	}
	for _, addr := range []string{"", "127.0.0.1", "localhost:7471", "192.0.2.1:7471", ":x", ":-1"} {
		_, err := c.Listen(addr, rdma.ListenConfig{})
		require.ErrorIs(t, err, rdma.ErrInvalid, addr)
	}
	_, err = c.Dial("127.0.0.1:7471", rdma.DialConfig{PrivateData: make([]byte, 57)})
	require.ErrorIs(t, err, rdma.ErrRange)
	_, err = c.Listen(":7471", rdma.ListenConfig{PrivateData: make([]byte, 197)})
	require.ErrorIs(t, err, rdma.ErrRange)
	_, err = c.Listen(":7471", rdma.ListenConfig{Backlog: -1})
	require.ErrorIs(t, err, rdma.ErrRange)
	l, addr := cs.listen(c, rdma.ListenConfig{})
	_, err = c.Listen(fmt.Sprintf(":%d", l.Addr().Port()), rdma.ListenConfig{})
	require.ErrorIs(t, err, verbs.ErrInUse)
	require.Empty(t, c.List())

	unroutable := must(c.Dial("[2001:db8::1]:7471", rdma.DialConfig{LocalAddr: netip.MustParseAddr("127.0.0.1")}))
	cs.until("failed", func() bool { return unroutable.State() == rdma.Failed })
	require.ErrorIs(t, unroutable.Err(), rdma.ErrNoRoute)
	dialled := must(c.Dial(addr, rdma.DialConfig{}))
	require.ErrorIs(t, dialled.Connect(nil), rdma.ErrNotReady)
	require.ErrorIs(t, dialled.Established(), rdma.ErrNotReady)
	exported, _ := must2(c.Export())
	require.ErrorIs(t, exported.Established(), rdma.ErrNotReady)
}

// Programs find a listener on the loopback interface at 127.0.0.1, whichever of its addresses the device
// has, also if the program has chosen the GID.
func TestListenAtChosenLoopbackGID(t *testing.T) {
	openSoft(t) // it, or another program, has 127.0.0.1
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{Path: rdma.PathConfig{GIDIndex: new(0)}, MaxConnections: 2}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	l := must(server.Listen(":0", rdma.ListenConfig{}))
	for _, host := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), server.GID().GID.Addr()} {
		conn := must(client.Dial(netip.AddrPortFrom(host, l.Addr().Port()).String(), rdma.DialConfig{Once: true}))
		cs.until("connected", func() bool { return conn.State() != rdma.Connecting })
		require.NoError(t, conn.Err())
	}
}

// The server's program dies without closing its connections: keepalives detect that.
func TestDialledPeerIsSilent(t *testing.T) { sim.Check(t, 3, testDialledPeerIsSilent) }

func testDialledPeerIsSilent(s *sim.Sim) {
	t := testOf(s)
	cs := newSimDialRig(s)
	server := cs.add(rdma.Config{})
	client := cs.add(rdma.Config{Keepalive: 50 * time.Millisecond, AckTimeout: 10 * time.Millisecond})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	conn := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("connected", func() bool { return conn.State() == rdma.Ready && len(server.ready) == 1 })
	s.Cut(s.Host("client"), s.Host("server"))
	cs.until("noticed", func() bool { return conn.State() == rdma.Failed })
	require.ErrorIs(t, conn.Err(), rdma.ErrRetryExceeded)
	s.Heal()
}

// The program's own communication ID, bridged into a context.
func TestBridge(t *testing.T) {
	for kind := range receiveKinds {
		t.Run(kind, func(t *testing.T) { testBridge(t, kind) })
	}
}

func testBridge(t *testing.T, kind string) {
	cs := newDialRig(t)
	cs.kind = kind
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})

	events := make(chan verbs.CMEvent, 8)
	cm, err := client.dev.(verbs.CMDevice).OpenCM(func(e verbs.CMEvent) { events <- e })
	require.NoError(t, err)
	defer func() { require.NoError(t, cm.Close()) }()
	next := func(want verbs.CMEventType) verbs.CMEvent {
		var e verbs.CMEvent
		cs.until(want.String(), func() bool {
			select {
			case e = <-events:
				return true
			default:
				return false
			}
		})
		require.Equal(t, want, e.Type, "%v", e.Err)
		return e
	}
	id, err := cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort(addr), Type: verbs.RC})
	require.NoError(t, err)
	next(verbs.CMResolved)
	conn := must(client.Bridge())
	if kind == "ReceivePerConnection" { // a message may come before Established
		_, err := conn.QP().PostRecv(make([]verbs.RecvWR, 1))
		require.ErrorIs(t, err, verbs.ErrQueueFull, "its receives are posted")
	}
	require.NoError(t, id.Connect(verbs.CMParam{QPN: conn.QPN(), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7}))
	next(verbs.CMConnectResponse)
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	for _, state := range []verbs.QPState{verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		attr, mask, err := id.Attr(state)
		require.NoError(t, err)
		require.NoError(t, conn.QP().Modify(attr, mask))
	}
	require.NoError(t, conn.Established())
	require.NoError(t, id.Establish())
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	cs.until("connected", func() bool { return len(server.ready) == 1 && client.State() == pe.Running })
	assert.Equal(t, server.ready[0].QPN(), conn.PeerQPN())
	assert.Equal(t, 1, conn.MaxReadAtomic())
	cs.send(client, conn, "over the bridge")
	cs.send(server, server.ready[0], "and back")
	cs.until("received", func() bool { return len(server.messages) == 1 && len(client.messages) == 1 })
	require.NoError(t, server.ready[0].Close())
	next(verbs.CMDisconnected)
	require.NoError(t, conn.Close())
	cs.until("closed", func() bool { return len(client.List()) == 0 })
}

// Many clients dial one server at the same moment, and all get through.
func TestManyDials(t *testing.T) {
	const clients, each = 4, 250
	cs := newDialRig(t)
	server := cs.add(rdma.Config{MaxConnections: clients * each})
	cs.start(server)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	var all []*dialContext
	for range clients {
		c := cs.add(rdma.Config{MaxConnections: each})
		cs.start(c)
		for range each {
			must(c.Dial(addr, rdma.DialConfig{}))
		}
		all = append(all, c)
	}
	cs.until("all are connected", func() bool {
		for _, c := range all {
			if len(c.ready) < each {
				return false
			}
		}
		return len(server.ready) == clients*each
	})
	for _, c := range all {
		require.Empty(t, c.errs)
	}
	require.Empty(t, server.errs)
}

// Connections come and go, and leave nothing: at the device, in the heap, or a goroutine.
func TestSoakDialAgainAndAgain(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	objects := func() int {
		runtime.GC()
		var heap runtime.MemStats
		runtime.ReadMemStats(&heap)
		return int(heap.HeapObjects)
	}
	rounds := soak.Rounds(t, 200, 10_000)
	first, goroutines := 0, 0
	for n := range rounds {
		if n == rounds/4 {
			first, goroutines = objects(), runtime.NumGoroutine()
		}
		conn := must(client.Dial(addr, rdma.DialConfig{}))
		cs.until("connected", func() bool { return len(client.ready) == 1 && len(server.ready) == 1 })
		require.NoError(t, []*rdma.Connection{conn, server.ready[0]}[n%2].Close())
		cs.until("closed", func() bool { return client.closed == n+1 && server.closed == n+1 })
		for _, c := range []*dialContext{server, client} {
			require.Len(t, c.reports, 1)
			clear(c.reports)
			clear(c.errs)
			c.ready = nil
		}
	}
	// Connections stay in time-wait for seconds.
	later := rounds - rounds/4
	cs.until("what connections hold is given back", func() bool {
		time.Sleep(10 * time.Millisecond)
		return objects() < first+later/2 && runtime.NumGoroutine() <= goroutines
	})
}

// A request whose acceptance fails does not end the context: the program never had the
// connection.
func TestUnaccepted(t *testing.T) {
	dev := openFaulty(t)
	cs := newDialRig(t)
	server := cs.addOn(dev, rdma.Config{EndWithLastConnection: true})
	client := cs.addOn(openSoft(t), rdma.Config{})
	cs.start(server, client)
	l := must(server.Listen(":0", rdma.ListenConfig{}))
	addr := netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String()
	dev.Set(func(h *faultydevice.Hooks) {
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if mask&verbs.QPAttrAddress != 0 {
				return faultydevice.ErrBroken
			}
			return qp.Modify(attr, mask)
		}
	})
	first := must(client.Dial(addr, rdma.DialConfig{Once: true}))
	cs.until("both ends have ended", func() bool { return server.closed == 1 && first.State() == rdma.Failed })
	require.ErrorIs(t, first.Err(), rdma.ErrRejected)
	require.NoError(t, first.Close())
	assert.Equal(t, pe.Running, server.State())
	require.NoError(t, server.Err())

	dev.Heal()
	cs.until("a free place", func() bool { return client.closed == 1 })
	second := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("Ready", func() bool { return second.State() == rdma.Ready && len(server.ready) == 1 })
	require.NoError(t, second.Close())
	cs.until("the context ends with that one", func() bool { return server.State() == pe.Idle })
	require.NoError(t, server.Err())
}
