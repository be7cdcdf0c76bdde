package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// counted is what a device counts, by name.
func counted(t *testing.T, dev verbs.Device, name string) uint64 {
	t.Helper()
	for _, c := range must(dev.Counters()) {
		if c.Name == name {
			return c.Value
		}
	}
	require.Fail(t, "no such counter", name)
	return 0
}

// Connections that have nothing to do take no part in the work for others: passes of the
// engine handle what one of them does and nothing else, and no packet is theirs, until their
// keepalives are due.
func TestIdleConnectionsAreLeftAlone(t *testing.T) {
	const connections, writes = 500, 200
	cfg := rdma.Config{MaxConnections: connections, Keepalive: time.Hour}
	r := newRig(t, cfg, cfg)
	var done outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, done.ok, done.bad))
	r.connect(connections)
	r.settle()
	task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
	for _, conn := range r.a.conns { // each has had something to do
		require.NoError(t, task.SetConnection(conn))
		require.NoError(t, task.Submit())
		r.until("it is written", func() bool { return !task.InFlight() })
	}
	require.NoError(t, task.SetConnection(r.a.conns[connections/2]))
	for range 1000 { // reports of connections
		must(r.engine.Progress())
	}
	handled := 0
	before := [2]uint64{counted(t, r.a.dev, "sent_pkts"), counted(t, r.b.dev, "sent_pkts")}
	for range writes {
		require.NoError(t, task.Submit())
		for task.InFlight() {
			handled += must(r.engine.Progress())
		}
	}
	require.Equal(t, writes, handled, "a pass handles what has been completed")
	// Some packets may have been repeated where the machine stood still.
	repeated := counted(t, r.a.dev, "completer_retry_err")
	sent := [2]uint64{counted(t, r.a.dev, "sent_pkts") - before[0], counted(t, r.b.dev, "sent_pkts") - before[1]}
	require.LessOrEqual(t, sent[0], writes+repeated, "one packet for each write")
	require.LessOrEqual(t, sent[1], writes+repeated, "and one that acknowledges it")
	require.Empty(t, done.errs)
	require.NoError(t, task.Free())
}
