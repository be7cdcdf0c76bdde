package rdma

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
)

// A context for very many connections takes memory for those that exist, and for the tasks
// that are in use: making and starting it takes hardly any, however many there may be.
func TestLargeContextsStartSmall(t *testing.T) {
	allocated := func(connections int) int {
		dev := must(soft.Open(soft.Config{}))
		engine := pe.New(pe.Config{})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := must(New(dev, Config{Engine: engine, MaxConnections: connections}))
		require.NoError(t, c.ReceivePerConnection(40, 0, func(*Message) {}))
		pool := must(c.Pool(20*connections, func(*Task) {}, func(*Task, error) {}))
		require.NoError(t, c.Start())
		for c.State() != pe.Running {
			must(engine.Progress())
		}
		runtime.ReadMemStats(&after)
		require.Equal(t, 20*connections, pool.Available())
		require.NoError(t, c.Close())
		require.NoError(t, engine.Close())
		require.NoError(t, dev.Close())
		return int(after.TotalAlloc - before.TotalAlloc)
	}
	few, many := allocated(64), allocated(1<<16)
	t.Logf("%d bytes for 64 connections, %d for 65,536", few, many)
	require.Less(t, many-few, 8<<16)
}
