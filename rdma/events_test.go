package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// alone is a context with one connection, to itself.
func alone(t *testing.T) (*pe.Engine, *Context, *Connection) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	c, err := New(dev, Config{EndWithLastConnection: true})
	require.NoError(t, err)
	require.NoError(t, engine.Connect(c))
	require.NoError(t, c.Start())
	conn, desc, err := c.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(desc))
	for c.State() != pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		require.NoError(t, c.Stop())
		for c.State() != pe.Idle {
			_, err := engine.Progress()
			require.NoError(t, err)
		}
		require.NoError(t, engine.Close())
		require.NoError(t, dev.Close())
	})
	return engine, c, conn
}

// When more events come than fit, the queue pairs themselves are asked.
func TestLostEvents(t *testing.T) {
	engine, c, conn := alone(t)
	require.NoError(t, conn.lane.QP().Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	for range 5000 {
		c.event(verbs.Event{Type: verbs.EventPortActive})
	}
	for c.State() == pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	assert.ErrorIs(t, conn.Err(), ErrDevice)
	assert.ErrorIs(t, c.Err(), ErrDevice)
}

func TestEventsThatEndTheContext(t *testing.T) {
	for name, event := range map[string]func(*Context, *Connection) verbs.Event{
		"queue pair": func(_ *Context, conn *Connection) verbs.Event {
			return verbs.Event{Type: verbs.EventQPFatal, QPN: conn.QPN()}
		},
		"completion queue": func(c *Context, _ *Connection) verbs.Event { return verbs.Event{Type: verbs.EventCQError, CQ: c.cq} },
		"device":           func(*Context, *Connection) verbs.Event { return verbs.Event{Type: verbs.EventDeviceFatal} },
	} {
		t.Run(name, func(t *testing.T) {
			engine, c, conn := alone(t)
			// None of these concerns the context.
			c.event(verbs.Event{Type: verbs.EventQPFatal, QPN: conn.QPN() + 1})
			c.event(verbs.Event{Type: verbs.EventCQError})
			c.event(verbs.Event{Type: verbs.EventSRQError})
			_, err := engine.Progress()
			require.NoError(t, err)
			require.Equal(t, pe.Running, c.State())
			var reported []error
			c.OnConnection(func(_ *Connection, state ConnectionState, err error) {
				if state == Failed {
					reported = append(reported, err)
				}
			})
			c.event(event(c, conn))
			for c.State() == pe.Running {
				_, err := engine.Progress()
				require.NoError(t, err)
			}
			assert.ErrorIs(t, c.Err(), ErrDevice)
			assert.ErrorIs(t, conn.Err(), ErrDevice)
			require.Len(t, reported, 1)
			assert.ErrorIs(t, reported[0], ErrDevice)
		})
	}
}

// A completion queue that fails ends the context, and every task comes back.
func TestBrokenCompletionQueue(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	c, err := New(dev, Config{EndWithLastConnection: true})
	require.NoError(t, err)
	require.NoError(t, engine.Connect(c))
	var errs []error
	pool, err := c.WritePool(4, func(task *WriteTask) { require.NoError(t, task.Free()) }, func(task *WriteTask, err error) {
		errs = append(errs, err)
		require.NoError(t, task.Free())
	})
	require.NoError(t, err)
	require.NoError(t, c.Start())
	conn, desc, err := c.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(desc))
	for c.State() != pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	for range 4 {
		task, err := pool.Alloc(conn, nil, nil)
		require.NoError(t, err)
		require.NoError(t, task.Submit())
	}
	c.breakDown(verbs.ErrOverrun)
	for c.State() != pe.Idle {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	require.Len(t, errs, 4)
	assert.ErrorIs(t, errs[0], ErrFlushed)
	assert.ErrorIs(t, c.Err(), verbs.ErrOverrun)
	assert.ErrorIs(t, conn.Err(), verbs.ErrOverrun)
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
}
