package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// A request that has arrived does not fail because the peer closes the connection: not even if
// its acknowledgement is lost, and the peer's disconnect notice overtakes its repetition.
func TestCloseFailsNoRequestThatArrived(t *testing.T) {
	for name, bothClose := range map[string]bool{"one end closes": false, "both ends close": true} {
		runSimulated(t, name, 100, func(t *testing.T, s *sim.Sim) { closeAfterArrival(t, s, bothClose) })
	}
}

func closeAfterArrival(t *testing.T, s *sim.Sim, bothClose bool) {
	a, b := newSeparateRigs(t, s.Host("a").Device(), s.Host("b").Device(), rdma.Config{}, rdma.Config{})
	lossy := sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: 0.1, Reorder: 0.2, ReorderDelay: 50 * time.Microsecond}
	arriveAndClose(t, a, b, 1+s.Rand().IntN(4), bothClose, func() { s.SetDefaultLink(lossy) }, func() {})
}

// The same on sockets: all acknowledgements are lost until the messages have arrived.
func TestCloseFailsNoRequestThatArrivedBySockets(t *testing.T) {
	for i := range 20 {
		var devices [2]*soft.Device
		for i := range devices {
			devices[i] = closed(t, must(soft.Open(soft.Config{DisableLocal: true})))
		}
		a, b := newSeparateRigs(t, devices[0], devices[1], rdma.Config{}, rdma.Config{})
		lose := func(share float64) { require.NoError(t, devices[0].SetFaults(soft.Faults{Loss: share})) }
		arriveAndClose(t, a, b, 4, i%2 == 1, func() { lose(1) }, func() {
			both(a, b, "a message is repeated", func() bool { return counter(t, devices[1], "duplicate_request") > 0 })
			lose(0)
		})
	}
}

// arriveAndClose sends n messages from a to b, and calls sending before and arrived after it. Then
// b closes the connection, and perhaps a too.
func arriveAndClose(t *testing.T, a, b *rig, n int, bothClose bool, sending, arrived func()) {
	taken, closed := 0, 0
	require.NoError(t, b.a.ctx.Receive(8, 64, func(m *rdma.Message) { taken++ }))
	sends := outcome[*rdma.Task]{then: func(task *rdma.Task) { assert.NoError(t, task.Free()) }}
	pool := must(a.a.ctx.Pool(4, sends.ok, sends.bad))
	for _, r := range []*rig{a, b} {
		r.a.ctx.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
			if state == rdma.Closed {
				closed++
			}
		})
	}
	require.NoError(t, a.a.ctx.Start())
	require.NoError(t, b.a.ctx.Start())
	conn, ours := must2(a.a.ctx.Export())
	peer, theirs := must2(b.a.ctx.Export())
	require.NoError(t, conn.Connect(theirs))
	require.NoError(t, peer.Connect(ours))
	both(a, b, "they are connected", func() bool { return conn.State() == rdma.Ready && peer.State() == rdma.Ready })
	sending()
	for i := range n {
		require.NoError(t, must(pool.SendImm(conn, a.a.bufs.Source(a.a.mem, 0, 8), uint32(i))).Submit())
	}
	both(a, b, "all has arrived", func() bool { return taken == n })
	arrived()
	require.NoError(t, peer.Close())
	if bothClose {
		require.NoError(t, conn.Close())
	}
	both(a, b, "both are closed", func() bool { return closed == 2 })
	require.Empty(t, sends.errs)
	require.Len(t, sends.done, n)
}
