package rdma_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// progress drives the engine for a while, in which nothing is expected to change.
func (cs *dialRig) progress() {
	for range 100 {
		cs.engine.Progress()
	}
}

// A context that listens while it is Starting is Running when as many connections have been
// Ready as its listener waits for, or when the listener is closed.
func TestListenerAwaitsConnections(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 4}), cs.add(rdma.Config{MaxConnections: 4})
	var l *rdma.Listener
	await := 2
	server.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			var err error
			l, err = server.Listen(":0", rdma.ListenConfig{Await: await, OnRequest: func(q *rdma.ConnectRequest) {
				_, err := q.Accept(rdma.AcceptConfig{})
				require.NoError(t, err)
			}})
			require.NoError(t, err)
		}
	})
	cs.start(server, client)
	cs.until("the other context runs", func() bool { return client.State() == pe.Running && l != nil })
	dial := func() *rdma.Connection {
		conn := must(client.Dial(netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{}))
		cs.until("it is Ready", func() bool { return conn.State() == rdma.Ready })
		return conn
	}
	first := dial()
	cs.until("the server knows", func() bool { return len(server.List()) == 1 && server.List()[0].State() == rdma.Ready })
	require.NoError(t, first.Close()) // it counts all the same
	cs.until("closed", func() bool { return server.closed == 1 })
	cs.progress()
	require.Equal(t, pe.Starting, server.State())
	dial()
	cs.until("the server runs", func() bool { return server.State() == pe.Running })
	dial()
	require.Equal(t, pe.Running, server.State())

	// The next run ends its wait with the listener. A listener that is made in Running waits for
	// nobody.
	require.NoError(t, server.Stop())
	cs.until("stopped", func() bool { return server.State() == pe.Idle })
	await = 1
	cs.start(server)
	cs.progress()
	require.Equal(t, pe.Starting, server.State())
	require.NoError(t, l.Close())
	cs.until("the server runs", func() bool { return server.State() == pe.Running })
	l = must(server.Listen(":0", rdma.ListenConfig{Await: 7}))
	cs.progress()
	require.Equal(t, pe.Running, server.State())
	_, err := server.Listen(":0", rdma.ListenConfig{Await: -1})
	require.ErrorIs(t, err, rdma.ErrRange)

	// One that stops while it waits does not wait.
	require.NoError(t, server.Stop())
	cs.until("stopped", func() bool { return server.State() == pe.Idle })
	cs.start(server)
	cs.progress()
	require.NoError(t, server.Stop())
	cs.until("stopped", func() bool { return server.State() == pe.Idle })
}

// A connection can be made before its request is answered: nothing is reported of it, and the
// request can still be rejected.
func TestPrepare(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 1, EndWithLastConnection: true}), cs.add(rdma.Config{MaxConnections: 8})
	var request *rdma.ConnectRequest
	var prepared *rdma.Connection
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		request, prepared = q, must(q.Prepare())
	}})
	dial := func() *rdma.Connection {
		request = nil
		conn := must(client.Dial(addr, rdma.DialConfig{Timeout: rdma.Forever}))
		cs.until("requested", func() bool { return request != nil })
		require.Equal(t, rdma.Exported, prepared.State())
		require.Same(t, prepared, must(request.Prepare()))
		return conn
	}
	conn := dial()
	require.Empty(t, server.reports)
	require.NoError(t, request.Reject([]byte("no")))
	cs.until("rejected", func() bool { return conn.State() == rdma.Failed && len(server.reports[prepared]) > 0 })
	require.ErrorIs(t, conn.Err(), rdma.ErrRejected)
	require.Equal(t, []string{"Closed"}, server.reports[prepared])
	require.NoError(t, conn.Close())
	require.Equal(t, pe.Running, server.State(), "it was not the program's last connection")
	_, err := request.Prepare()
	require.ErrorIs(t, err, rdma.ErrNotReady)

	// The peer gives up.
	conn = dial()
	require.NoError(t, conn.Close())
	cs.until("given up", func() bool { return request.Err() != nil && len(server.reports[prepared]) > 0 })
	_, err = request.Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotReady)

	// The program closes it.
	conn = dial()
	require.NoError(t, prepared.Close())
	_, err = request.Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotReady)
	require.NoError(t, request.Reject(nil))
	cs.until("rejected", func() bool { return conn.State() == rdma.Failed && len(server.reports[prepared]) > 0 })
	require.NoError(t, conn.Close())

	conn = dial()
	require.Same(t, prepared, must(request.Accept(rdma.AcceptConfig{PrivateData: []byte("welcome")})))
	cs.until("both are up", func() bool { return conn.State() == rdma.Ready && prepared.State() == rdma.Ready })
	require.Equal(t, []string{"Connecting", "Ready"}, server.reports[prepared])
	cs.send(client, conn, "hello")
	cs.until("it has come", func() bool { return len(server.messages) == 1 })
	require.NoError(t, conn.Close())
	cs.until("the server ends with its last connection", func() bool { return server.State() == pe.Idle })
}

// A program that dials looks at what the peer has answered before the connection is Ready, and
// decides whether a rejection ends the dial.
func TestDialAnswers(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 5}), cs.add(rdma.Config{MaxConnections: 5})
	requests := 0
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		if requests++; requests < 3 {
			require.NoError(t, q.Reject([]byte("later")))
			return
		}
		if requests == 5 {
			require.NoError(t, q.Reject([]byte("never")))
			return
		}
		_, err := q.Accept(rdma.AcceptConfig{PrivateData: []byte("welcome")})
		require.NoError(t, err)
	}})
	final := errors.New("it is final")
	var responded *rdma.Connection
	cfg := rdma.DialConfig{
		Timeout:    rdma.Forever,
		OnResponse: func(conn *rdma.Connection) { responded = conn },
		OnReject: func(data []byte) error {
			if string(data[:5]) == "later" {
				return nil
			}
			return final
		},
	}
	conn := must(client.Dial(addr, cfg))
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	cs.until("answered", func() bool { return responded == conn })
	assert.Equal(t, "welcome", string(conn.AcceptData()[:7]))
	require.ErrorIs(t, conn.DialError(), rdma.ErrRejected)
	cs.progress()
	require.Equal(t, rdma.Connecting, conn.State())
	require.Equal(t, rdma.Connecting, server.List()[0].State())
	require.NoError(t, conn.Established())
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	cs.until("both are up", func() bool { return conn.State() == rdma.Ready && server.List()[0].State() == rdma.Ready })

	// It withdraws.
	responded = nil
	conn = must(client.Dial(addr, cfg))
	cs.until("answered", func() bool { return responded == conn })
	require.NoError(t, conn.Close())
	cs.until("the server knows", func() bool {
		for _, c := range server.List() {
			if c.State() == rdma.Failed || c.State() == rdma.Closed {
				return true
			}
		}
		return false
	})

	// The peer sends before it may.
	requests = 10
	responded = nil
	conn = must(client.Dial(addr, cfg))
	cs.until("answered", func() bool { return responded == conn })
	list := server.List()
	_, err := list[len(list)-1].QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
	require.NoError(t, err)
	cs.until("refused", func() bool { return conn.State() == rdma.Failed })
	require.ErrorIs(t, conn.Err(), rdma.ErrMismatch)
	require.NoError(t, conn.Close())
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	require.Empty(t, client.messages)
	cs.until("closed", func() bool { return client.closed == 2 })

	requests = 4
	conn = must(client.Dial(addr, cfg))
	cs.until("rejected", func() bool { return conn.State() == rdma.Failed })
	require.ErrorIs(t, conn.Err(), final)
	var failure *verbs.CMError
	require.False(t, errors.As(conn.Err(), &failure))
}

// A program that accepts need not know the connection before the peer has confirmed: one that ends
// before is closed, and is not the context's last.
func TestAcceptConfirmed(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 2, EndWithLastConnection: true}), cs.add(rdma.Config{MaxConnections: 2})
	var established []*rdma.Connection
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		_, err := q.Accept(rdma.AcceptConfig{OnEstablished: func(conn *rdma.Connection) {
			assert.Equal(t, rdma.Connecting, conn.State())
			assert.Equal(t, []string{"Connecting"}, server.reports[conn])
			established = append(established, conn)
		}})
		require.NoError(t, err)
	}})
	responded := false
	silent := must(client.Dial(addr, rdma.DialConfig{OnResponse: func(*rdma.Connection) { responded = true }}))
	cs.until("accepted", func() bool { return responded })
	require.NoError(t, silent.Close())
	cs.until("the server has closed it", func() bool { return server.closed == 1 })
	require.Empty(t, established)
	cs.progress()
	require.Equal(t, pe.Running, server.State())

	conn := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("both are up", func() bool {
		return conn.State() == rdma.Ready && len(established) == 1 && established[0].State() == rdma.Ready
	})
	require.NoError(t, conn.Close())
	cs.until("the server ends with its last connection", func() bool { return server.State() == pe.Idle })
}

// A peer that dials, and does not confirm, does not keep a context whose last connection has
// ended.
func TestUnconfirmedDoesNotKeepTheContext(t *testing.T) {
	cs := newDialRig(t)
	server, client := cs.add(rdma.Config{MaxConnections: 2, EndWithLastConnection: true}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		_, err := q.Accept(rdma.AcceptConfig{OnEstablished: func(*rdma.Connection) {}})
		require.NoError(t, err)
	}})
	conn := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("the first is up", func() bool { return conn.State() == rdma.Ready && len(server.ready) == 1 })
	responded := false
	silent := must(client.Dial(addr, rdma.DialConfig{OnResponse: func(*rdma.Connection) { responded = true }}))
	cs.until("the second is accepted", func() bool { return responded })
	require.NoError(t, conn.Close())
	cs.until("the server has closed the first", func() bool { return server.closed == 1 })
	require.NoError(t, silent.Close())
	cs.until("the server ends", func() bool { return server.State() == pe.Idle })
	require.NoError(t, server.Err())
}

// An address whose peers do not confirm gets only as many connections as it leaves free. Its further
// requests wait, and those of another address do not wait behind them.
func TestUnconfirmedLeaveRoom(t *testing.T) { sim.Check(t, 2, testUnconfirmedLeaveRoom) }

func testUnconfirmedLeaveRoom(s *sim.Sim) {
	cs := newDialRig(testOf(s), s.Host("server").Device(), s.Host("silent").Device(), s.Host("honest").Device())
	const places = 8
	server := cs.add(rdma.Config{MaxConnections: places})
	silent, honest := cs.add(rdma.Config{MaxConnections: 4 * places}), cs.add(rdma.Config{MaxConnections: places})
	cs.start(server, silent, honest)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	responses := 0
	var last *rdma.Connection
	for range 4 * places {
		last = must(silent.Dial(addr, rdma.DialConfig{OnResponse: func(*rdma.Connection) { responses++ }}))
	}
	cs.until("it has its share", func() bool { return responses == places/2 })
	var conns []*rdma.Connection
	for range places / 2 {
		conn := must(honest.Dial(addr, rdma.DialConfig{}))
		cs.until("another client is served", func() bool { return conn.State() == rdma.Ready })
		conns = append(conns, conn)
	}
	require.Equal(s, places/2, responses)
	require.Equal(s, rdma.Connecting, last.State())

	for _, conn := range silent.List() {
		require.NoError(s, conn.Close())
	}
	for _, conn := range conns {
		require.NoError(s, conn.Close())
	}
	cs.until("all have ended", func() bool { return len(server.List()) == 0 && honest.closed == len(conns) })
	conns = nil
	for range places { // one address alone gets all that it confirms
		conns = append(conns, must(honest.Dial(addr, rdma.DialConfig{})))
	}
	cs.until("all places are in use", func() bool {
		return !slices.ContainsFunc(conns, func(c *rdma.Connection) bool { return c.State() != rdma.Ready })
	})
}

// So do connections that the program closes before the peer has confirmed them: they keep their
// places until the peer knows.
func TestClosedUnconfirmedLeaveRoom(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		cs := newDialRig(testOf(s), s.Host("server").Device(), s.Host("silent").Device(), s.Host("honest").Device())
		const places = 8
		server := cs.add(rdma.Config{MaxConnections: places, CloseTimeout: 5 * time.Second})
		silent, honest := cs.add(rdma.Config{MaxConnections: 4 * places}), cs.add(rdma.Config{MaxConnections: places})
		cs.start(server, silent, honest)
		_, addr := cs.listen(server, rdma.ListenConfig{})
		responses := 0
		for range 4 * places {
			must(silent.Dial(addr, rdma.DialConfig{OnResponse: func(*rdma.Connection) { responses++ }}))
		}
		cs.until("it has its share", func() bool { return responses == places/2 })
		for _, conn := range server.List() {
			require.Equal(s, rdma.Connecting, conn.State())
			require.NoError(s, conn.Close())
		}
		for range places / 2 {
			conn := must(honest.Dial(addr, rdma.DialConfig{}))
			cs.until("another client is served", func() bool { return conn.State() == rdma.Ready })
		}
		require.Equal(s, places/2, responses)
		cs.until("the places are free, and the address gets some of them", func() bool { return responses > places/2 })
	})
}
