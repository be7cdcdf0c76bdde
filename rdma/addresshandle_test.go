package rdma

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// Peers that the context knows do not keep the memory of address handles that are closed, whether
// for others or at the end of a run, and tasks to them make new ones.
func TestClosedAddressHandlesAreFreed(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	c, err := NewDatagrams(dev, DatagramsConfig{Engine: engine})
	require.NoError(t, err)
	sent := 0
	pool, err := c.Pool(1, func(task *Task) { sent++; require.NoError(t, task.Free()) }, func(task *Task, err error) {
		require.NoError(t, err)
	})
	require.NoError(t, err)
	var peers []*Peer
	var handles []weak.Pointer[addressHandle]
	for range 2 { // runs
		require.NoError(t, c.Start())
		c.endpoint.handles.limit = 2
		for i := range 6 {
			p, err := c.PeerAt(EndpointAddr{GID: verbs.GIDFromAddr(netip.MustParseAddr(fmt.Sprint("127.0.9.", i+1))), QPN: 77})
			require.NoError(t, err)
			peers = append(peers, p)
			task, err := pool.Send(p, nil)
			require.NoError(t, err)
			before := sent
			require.NoError(t, task.Submit())
			for sent == before {
				_, err := engine.Progress()
				require.NoError(t, err)
			}
			handles = append(handles, weak.Make(p.handle.Get()))
		}
		require.Len(t, c.endpoint.handles.open, 2)
		for i, p := range peers[len(peers)-6:] {
			require.Equal(t, i < 4, p.handle.Get() == nil, "handle %d is closed", i)
		}
		require.NoError(t, c.Stop())
		for c.State() != pe.Idle {
			_, err := engine.Progress()
			require.NoError(t, err)
		}
	}
	runtime.GC()
	for i, h := range handles {
		require.True(t, h.Value() == nil, "handle %d is still in memory", i)
	}
	runtime.KeepAlive(peers)
	require.NoError(t, c.Close())
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
}
