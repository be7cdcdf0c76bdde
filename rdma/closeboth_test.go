package rdma_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// quickCloser is a program of a simulated host that closes its connection soon after it was made.
type quickCloser struct {
	*sim.Host
	sim    *sim.Sim
	conn   *rdma.Connection // to be closed
	closes time.Duration    // when
	begun  time.Duration    // when it called Close; zero: the connection ended before
	ended  time.Duration    // when its place was free; zero: it is not
}

// run makes a context for one connection, which begin makes, and drives the engine. In between,
// the program does other things, so that it learns late of what has happened.
func (x *quickCloser) run(ctx context.Context, dev verbs.Device, begin func(c *rdma.Connections)) error {
	c, err := rdma.New(dev, rdma.Config{Engine: pe.New(pe.Config{}), MaxConnections: 1})
	require.NoError(x.sim, err)
	c.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready, rdma.Failed:
			x.closeSoon(conn)
		case rdma.Closed:
			x.ended = x.sim.Now()
		}
	})
	require.NoError(x.sim, c.Start())
	begin(c)
	for ctx.Err() == nil {
		_, err := c.Engine().Progress()
		require.NoError(x.sim, err)
		x.pause()
		if x.conn != nil && x.begun == 0 && x.sim.Now() >= x.closes && x.conn.State() != rdma.Closed {
			x.begun = x.sim.Now()
			require.NoError(x.sim, x.conn.Close())
			x.pause()
		}
	}
	return c.Engine().Run(ctx)
}

func (x *quickCloser) pause() { x.Sleep(time.Duration(x.Rand().IntN(100)) * time.Microsecond) }

// closeSoon has the connection closed as soon as possible, or up to 400 µs later.
func (x *quickCloser) closeSoon(conn *rdma.Connection) {
	if x.conn == nil {
		x.conn, x.closes = conn, x.sim.Now()+time.Duration(x.Rand().IntN(2)*x.Rand().IntN(400))*time.Microsecond
	}
}

// Both ends close at about the same time, the accepting one perhaps before it knows that the peer
// has confirmed. Neither waits for requests that the other does not serve any more.
func TestBothEndsCloseAtOnce(t *testing.T) {
	sim.Check(t, 100, func(s *sim.Sim) {
		server, client := &quickCloser{Host: s.Host("server"), sim: s}, &quickCloser{Host: s.Host("client"), sim: s}
		s.SetDefaultLink(sim.LinkConfig{Latency: 50 * time.Microsecond})
		server.Run(func(ctx context.Context, dev verbs.Device) error {
			return server.run(ctx, dev, func(c *rdma.Connections) {
				_, err := c.Listen(":7471", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
					conn, err := q.Accept(rdma.AcceptConfig{})
					require.NoError(s, err)
					server.closeSoon(conn)
				}})
				require.NoError(s, err)
			})
		})
		client.Run(func(ctx context.Context, dev verbs.Device) error {
			return client.run(ctx, dev, func(c *rdma.Connections) {
				_, err := c.Dial(netip.AddrPortFrom(server.Addr(), 7471).String(), rdma.DialConfig{})
				require.NoError(s, err)
			})
		})
		s.RunUntil(func() bool { return server.ended > 0 && client.ended > 0 }, time.Minute)
		require.Less(s, max(server.ended, client.ended)-max(server.begun, client.begun), 10*time.Millisecond)
	})
}

// A connection that is closed before the peer's confirmation is handled serves the peer until the
// peer knows.
func TestCloseBeforeConfirmation(t *testing.T) {
	for name, cfg := range map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}} {
		t.Run(name, func(t *testing.T) {
			cs, far := newDialRig(t, must(soft.Open(cfg))), newDialRig(t, must(soft.Open(cfg)))
			for _, r := range []*dialRig{cs, far} {
				dev := r.devices[0]
				t.Cleanup(func() { require.NoError(t, dev.Close()) })
			}
			client, server := cs.add(rdma.Config{CloseTimeout: 5 * time.Minute}), far.add(rdma.Config{CloseTimeout: 5 * time.Minute})
			cs.start(client)
			far.start(server)
			var accepted *rdma.Connection
			l, err := server.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
				accepted = must(q.Accept(rdma.AcceptConfig{}))
			}})
			require.NoError(t, err)
			conn, err := client.Dial(netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{})
			require.NoError(t, err)
			cs.until("the client is Ready, and the server does not know", func() bool {
				if conn.State() == rdma.Ready {
					return true
				}
				_, err := far.engine.Progress()
				require.NoError(t, err)
				return false
			})
			require.Equal(t, rdma.Connecting, accepted.State())
			require.NoError(t, accepted.Close())
			cs.send(client, conn, "a message that the server's device has to take")
			require.NoError(t, conn.Close())
			cs.until("both are closed", func() bool {
				_, err := far.engine.Progress()
				require.NoError(t, err)
				return client.closed == 1 && server.closed == 1
			})
		})
	}
}

// A connection that is closed waits for the peer's confirmation until Config.CloseTimeout is over. Then
// the peer's dial is rejected.
func TestCloseWithoutConfirmation(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		cs := newSimDialRig(s)
		server, client := cs.add(rdma.Config{MaxConnections: 1, CloseTimeout: 3 * time.Second}), cs.add(rdma.Config{})
		cs.start(server, client)
		var accepted, responded *rdma.Connection
		l, addr := cs.listen(server, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			accepted = must(q.Accept(rdma.AcceptConfig{}))
		}})
		conn, err := client.Dial(addr, rdma.DialConfig{OnResponse: func(conn *rdma.Connection) { responded = conn }})
		require.NoError(s, err)
		cs.until("the client is to confirm", func() bool { return responded != nil })
		begun := s.Now()
		require.NoError(s, accepted.Close())
		_, err = server.Dial(addr, rdma.DialConfig{})
		require.ErrorIs(s, err, rdma.ErrFull)
		require.ErrorContains(s, err, "1 of 1 places are held by connections that are closing")
		cs.until("both have ended", func() bool { return server.closed == 1 && conn.State() == rdma.Failed })
		require.GreaterOrEqual(s, s.Now()-begun, 3*time.Second)
		require.ErrorIs(s, conn.Err(), rdma.ErrRejected)
		require.NoError(s, l.Close())
	})
}
