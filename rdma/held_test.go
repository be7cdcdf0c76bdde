package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A context stays in Starting while a package has something to make.
func TestHoldStarting(t *testing.T) {
	cs := newCallers(t)
	c, other := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	c.HoldStarting()() // in Idle there is nothing to hold
	var releases []func()
	c.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			releases = append(releases, c.HoldStarting(), c.HoldStarting())
		}
	})
	cs.start(c)
	cs.start(other)
	cs.until("another context runs", func() bool { return other.State() == pe.Running })
	for range 100 {
		cs.engine.Progress()
	}
	require.Equal(t, pe.Starting, c.State())
	releases[0]()
	releases[0]() // counts once
	for range 100 {
		cs.engine.Progress()
	}
	require.Equal(t, pe.Starting, c.State())
	releases[1]()
	cs.until("released", func() bool { return c.State() == pe.Running })
	c.HoldStarting()()
	require.Equal(t, pe.Running, c.State())

	// A context that stops does not wait, and what was held is of that run alone.
	releases = nil
	require.NoError(t, c.Stop())
	cs.until("stopped", func() bool { return c.State() == pe.Idle })
	cs.start(c)
	cs.until("held", func() bool { return len(releases) == 2 })
	require.NoError(t, c.Stop())
	cs.until("stopped", func() bool { return c.State() == pe.Idle })
	stale := releases
	releases = nil
	cs.start(c)
	cs.until("held", func() bool { return len(releases) == 2 })
	stale[0]()
	stale[1]()
	releases[0]()
	for range 100 {
		cs.engine.Progress()
	}
	require.Equal(t, pe.Starting, c.State())
	releases[1]()
	cs.until("released", func() bool { return c.State() == pe.Running })
}

// heldReports is what the function of DialConfig.Held has got.
type heldReports struct {
	list []string
	conn *rdma.Connection
	up   bool
	err  error
}

func (h *heldReports) changed(conn *rdma.Connection, s rdma.ConnectionState, err error) {
	h.list, h.conn = append(h.list, s.String()), conn
	h.up = h.up || s == rdma.Ready
	if err != nil {
		h.err = err
	}
}

// The program is told of a held connection when it is announced. Before, the package can
// write on it.
func TestHeldConnection(t *testing.T) {
	cs := newCallers(t)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	var asked, accepted heldReports
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		_, err := q.Accept(rdma.AcceptConfig{Held: accepted.changed})
		require.NoError(t, err)
	}})
	conn, err := client.Dial(addr, rdma.DialConfig{Held: asked.changed})
	require.NoError(t, err)
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady)
	cs.until("both are up", func() bool { return asked.up && accepted.up })
	assert.Equal(t, []string{"Connecting", "Ready"}, asked.list)
	assert.Equal(t, []string{"Connecting", "Ready"}, accepted.list)
	assert.Equal(t, rdma.Connecting, conn.State())
	assert.Equal(t, rdma.Connecting, accepted.conn.State())
	assert.Equal(t, pe.Starting, client.State(), "it waits for the connection")
	assert.Empty(t, client.List())
	assert.Empty(t, client.reports)
	require.ErrorIs(t, conn.Established(), rdma.ErrNotReady, "it is not announced")

	landing := must(mmap.Alloc(server.dev, 64, mmap.LocalReadWrite|mmap.RemoteWrite))
	defer func() { assert.NoError(t, landing.Close()) }()
	source := must(mmap.Alloc(client.dev, 64, mmap.LocalReadWrite))
	defer func() { assert.NoError(t, source.Close()) }()
	copy(source.Bytes(), "written before the program knows")
	key := must(landing.ExportKey(server.PD()))
	written := false
	write := func() error {
		return conn.WriteHeld(source, 0, 32, landing.Addr(), key, func(err error) {
			require.NoError(t, err)
			written = true
		})
	}
	require.ErrorIs(t, conn.WriteHeld(source, 60, 8, landing.Addr(), key, nil), rdma.ErrRange)
	require.NoError(t, write())
	require.ErrorIs(t, write(), rdma.ErrNotReady, "one at a time")
	cs.until("written", func() bool { return written })
	assert.Equal(t, source.Bytes(), landing.Bytes())

	require.NoError(t, accepted.conn.Announce())
	require.ErrorIs(t, accepted.conn.Announce(), rdma.ErrNotReady)
	require.NoError(t, conn.Announce())
	require.NoError(t, conn.Established())
	require.NoError(t, conn.Established())
	require.ErrorIs(t, write(), rdma.ErrNotReady)
	cs.until("the client runs", func() bool { return client.State() == pe.Running })
	assert.Equal(t, []string{"Connecting", "Ready"}, client.reports[conn])
	cs.until("announced", func() bool { return len(server.reports[accepted.conn]) == 1 })
	assert.Equal(t, rdma.Connecting, accepted.conn.State())
	cs.send(client, conn, "the peer is Ready")
	cs.until("the message has come", func() bool { return len(server.messages) == 1 })
	assert.Equal(t, rdma.Ready, accepted.conn.State())
	require.NoError(t, accepted.conn.Established(), "that was done by the message")
	cs.send(server, accepted.conn, "so is this end")
	cs.until("the message has come", func() bool { return len(client.messages) == 1 })

	require.NoError(t, conn.Close())
	cs.until("both are closed", func() bool { return client.closed == 1 && server.closed == 1 })
	assert.Equal(t, []string{"Connecting", "Ready", "Closed"}, server.reports[accepted.conn])
	assert.Len(t, asked.list, 2)
	assert.Len(t, accepted.list, 2)
}

// A message to a program that does not know of the connection yet is nobody's, and takes no
// receive.
func TestHeldConnectionGetsMessage(t *testing.T) {
	cs := newCallers(t)
	server, client := cs.add(rdma.Config{MaxConnections: 2, EndWithLastConnection: true}), cs.add(rdma.Config{MaxConnections: 2})
	var held heldReports
	cs.start(server, client)
	hold := true
	_, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		cfg := rdma.AcceptConfig{}
		if hold {
			cfg.Held = held.changed
		}
		_, err := q.Accept(cfg)
		require.NoError(t, err)
	}})
	conn := must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("it is up", func() bool { return conn.State() == rdma.Ready && held.up })
	cs.send(client, conn, "too early")
	cs.until("refused", func() bool { return held.err != nil && conn.State() == rdma.Closed })
	require.ErrorIs(t, held.err, rdma.ErrMismatch)
	require.ErrorIs(t, held.conn.Announce(), rdma.ErrNotReady)
	require.NoError(t, held.conn.Close())
	cs.until("closed", func() bool { return len(held.list) == 4 })
	assert.Equal(t, []string{"Connecting", "Ready", "Failed", "Closed"}, held.list)
	assert.Empty(t, server.reports)
	require.Equal(t, pe.Running, server.State(), "the program had no connection that could be its last")

	hold = false
	conn = must(client.Dial(addr, rdma.DialConfig{}))
	cs.until("it is up", func() bool { return conn.State() == rdma.Ready })
	for range 20 { // more than there are receives
		cs.send(client, conn, "in time")
	}
	cs.until("all have come", func() bool { return len(server.messages) == 20 })
	assert.NotContains(t, server.messages, "too early")
}

// A held connection waits for the package as long as a dial may take.
func TestHeldConnectionTimesOut(t *testing.T) {
	cs := newCallers(t)
	server, client := cs.add(rdma.Config{}), cs.add(rdma.Config{})
	cs.start(server, client)
	_, addr := cs.listen(server, rdma.ListenConfig{})
	var held heldReports
	must(client.Dial(addr, rdma.DialConfig{Held: held.changed, Timeout: 1}))
	cs.until("given up", func() bool { return held.err != nil })
	require.ErrorIs(t, held.err, rdma.ErrTimeout)
	assert.Empty(t, client.reports)
}
