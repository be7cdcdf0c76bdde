package rdma_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// What a peer has sent before it disconnects is delivered before the connection is reported
// Closed: on a network that loses and reorders packets, to a program that takes messages all the
// time or sleeps meanwhile, whether the peer waits for its sends before it closes or not.
func TestMessagesComeBeforeClosed(t *testing.T) {
	for kind := range receiveKinds {
		for _, way := range []string{"by descriptors", "by address"} {
			for _, asleep := range []bool{false, true} {
				for _, waits := range []bool{false, true} {
					runSimulated(t, fmt.Sprintf("%s, %s, asleep %v, waits %v", kind, way, asleep, waits), 3, func(t *testing.T, s *sim.Sim) {
						messagesBeforeClosed(t, s, kind, way, asleep, waits)
					})
				}
			}
		}
	}
}

func messagesBeforeClosed(t *testing.T, s *sim.Sim, kind, way string, asleep, waits bool) {
	const n = 300 // more completions than one pass handles
	cfg := rdma.Config{CloseTimeout: 10 * time.Second, Keepalive: time.Hour}
	a, b := newSeparateRigs(t, s.Host("a").Device(), s.Host("b").Device(), cfg, cfg)
	var got []uint32
	var peer *rdma.Connection
	ended, late := false, 0
	require.NoError(t, receiveKinds[kind](b.a.ctx, n, 8, func(m *rdma.Message) {
		assert.Same(t, peer, m.Connection())
		imm, _ := m.Imm()
		got = append(got, imm)
		if ended {
			late++
		}
	}))
	b.a.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			peer = conn
		case rdma.Closed:
			assert.ErrorIs(t, err, rdma.ErrPeerClosed)
			ended = true
		}
	})
	sends := outcome[*rdma.Task]{then: func(task *rdma.Task) { assert.NoError(t, task.Free()) }}
	pool := must(a.a.ctx.Pool(n, sends.ok, sends.bad))
	require.NoError(t, a.a.ctx.Start())
	require.NoError(t, b.a.ctx.Start())
	var conn *rdma.Connection
	if way == "by address" {
		l := must(b.a.ctx.Listen(":0", rdma.ListenConfig{}))
		conn = must(a.a.ctx.Dial(netip.AddrPortFrom(b.a.ctx.GID().GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{}))
	} else {
		var ours, theirs []byte
		conn, ours = must2(a.a.ctx.Export())
		other, desc := must2(b.a.ctx.Export())
		theirs = desc
		require.NoError(t, conn.Connect(theirs))
		require.NoError(t, other.Connect(ours))
	}
	both(a, b, "they are connected", func() bool { return conn.State() == rdma.Ready && peer != nil })
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: 0.02, Reorder: 0.3, ReorderDelay: time.Millisecond})
	for i := range uint32(n) {
		require.NoError(t, must(pool.SendImm(conn, a.a.bufs.Source(a.a.mem, 0, 8), i)).Submit())
	}
	drive := both
	if asleep {
		drive = func(a, _ *rig, what string, done func() bool) { a.until(what, done) }
	}
	if waits {
		drive(a, b, "all is sent", func() bool { return sends.count() == n })
		require.Empty(t, sends.errs)
	}
	require.NoError(t, conn.Close())
	if asleep {
		a.until("the tasks have ended", func() bool { return sends.count() == n })
	}
	both(a, b, "the other end is told", func() bool { return ended && sends.count() == n })
	for range 100 {
		must(b.engine.Progress())
	}
	require.Zero(t, late)
	for i, imm := range got {
		require.Equal(t, uint32(i), imm)
	}
	require.GreaterOrEqual(t, len(got), len(sends.done), "what was acknowledged is delivered")
	if waits {
		require.Len(t, got, n)
	}
}

// A message that is too long for its receive is why a connection ends, even if the peer's disconnect,
// which follows the refusal, is known before the receive has come back.
func TestMessageTooLongComesBeforeClosed(t *testing.T) {
	for kind := range receiveKinds {
		runSimulated(t, kind, 3, func(t *testing.T, s *sim.Sim) {
			a, b := newSeparateRigs(t, s.Host("a").Device(), s.Host("b").Device(), rdma.Config{}, rdma.Config{})
			var reports []string
			var reason error
			b.a.record(&reports, &reason)
			require.NoError(t, receiveKinds[kind](b.a.ctx, 8, 8, func(*rdma.Message) { assert.Fail(t, "a message came") }))
			var sends outcome[*rdma.Task]
			pool := must(a.a.ctx.Pool(1, sends.ok, sends.bad))
			require.NoError(t, a.a.ctx.Start())
			require.NoError(t, b.a.ctx.Start())
			l := must(b.a.ctx.Listen(":0", rdma.ListenConfig{}))
			conn := must(a.a.ctx.Dial(netip.AddrPortFrom(b.a.ctx.GID().GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{}))
			both(a, b, "they are connected", func() bool {
				return conn.State() == rdma.Ready && len(b.a.ctx.List()) == 1 && b.a.ctx.List()[0].State() == rdma.Ready
			})
			peer := b.a.ctx.List()[0]

			task := must(pool.Send(conn, a.a.bufs.Source(a.a.mem, 0, 9)))
			require.NoError(t, task.Submit())
			a.until("it is refused", func() bool { return conn.State() == rdma.Failed && sends.count() == 1 })
			require.ErrorIs(t, sends.errs[0], rdma.ErrRemoteInvalid)
			require.NoError(t, task.Free())
			require.NoError(t, conn.Close())
			closed := time.Now()
			a.until("the other end's device has the disconnect", func() bool { return time.Since(closed) > time.Second })
			both(a, b, "the other end is closed", func() bool { return reports[len(reports)-1] == "Closed" })
			require.Equal(t, []string{"Connecting", "Ready", "Failed", "Closed"}, reports)
			require.ErrorIs(t, reason, rdma.ErrLocalLength)
			require.Equal(t, reason, peer.Err())
		})
	}
}
