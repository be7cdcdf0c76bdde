package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
)

// A connection that is closed frees its place also while another one keeps the
// completion queue from ever being seen empty.
func TestClosedBesideABusyConnection(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	c, err := New(dev, Config{Engine: engine, MaxConnections: 2})
	require.NoError(t, err)
	stop := false
	end := func(task *Task) {
		if stop || task.Submit() != nil {
			require.NoError(t, task.Free())
		}
	}
	pool, err := c.Pool(1, end, func(task *Task, err error) { require.NoError(t, task.Free()) })
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var conns [2]*Connection
	for i := range conns {
		conn, desc, err := c.Export()
		require.NoError(t, err)
		require.NoError(t, conn.Connect(desc))
		conns[i] = conn
	}
	for c.State() != pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	task, err := pool.Write(conns[0], nil, nil)
	require.NoError(t, err)
	require.NoError(t, task.Submit())
	require.NoError(t, conns[1].Close())
	passes := 0
	for ; len(c.List()) > 1 || !c.hasRoom(); passes++ {
		require.Less(t, passes, 100_000, "the place of the closed connection is still taken")
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	t.Logf("closed after %d passes", passes)
	stop = true
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
}

// Arm does not sleep on a context that has yet to stop because its last connection was
// closed.
func TestArmBeforeTheLastConnectionsEnd(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	c, err := New(dev, Config{Engine: engine, EndWithLastConnection: true})
	require.NoError(t, err)
	require.NoError(t, c.Start())
	conn, _, err := c.Export()
	require.NoError(t, err)
	for range 10 {
		_, err = engine.Progress()
		require.NoError(t, err)
	}
	require.Equal(t, pe.Starting, c.State())
	require.NoError(t, conn.Close())
	for c.State() == pe.Starting {
		_, err = engine.Progress()
		require.NoError(t, err)
	}
	if c.State() == pe.Running {
		require.False(t, asBackend{&c.parts}.Arm(), "the context is to stop")
	}
	for c.State() != pe.Idle {
		_, err = engine.Progress()
		require.NoError(t, err)
	}
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
}
