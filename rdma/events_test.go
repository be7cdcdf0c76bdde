package rdma

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// alone is a context with one connection, to itself.
func alone(t *testing.T) (*pe.Engine, *Connections, *Connection) {
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
		c.eventCame(verbs.Event{Type: verbs.EventPortActive})
	}
	for c.State() == pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	assert.ErrorIs(t, conn.Err(), ErrDevice)
	assert.ErrorIs(t, c.Err(), ErrDevice)
}

func TestEventsThatEndTheContext(t *testing.T) {
	for name, event := range map[string]func(*Connections, *Connection) verbs.Event{
		"queue pair": func(_ *Connections, conn *Connection) verbs.Event {
			return verbs.Event{Type: verbs.EventQPFatal, QPN: conn.QPN()}
		},
		"completion queue": func(c *Connections, _ *Connection) verbs.Event {
			return verbs.Event{Type: verbs.EventCQError, CQ: c.lanes.cq}
		},
		"device": func(*Connections, *Connection) verbs.Event { return verbs.Event{Type: verbs.EventDeviceFatal} },
	} {
		t.Run(name, func(t *testing.T) {
			engine, c, conn := alone(t)
			// None of these concerns the context.
			c.eventCame(verbs.Event{Type: verbs.EventQPFatal, QPN: conn.QPN() + 1})
			c.eventCame(verbs.Event{Type: verbs.EventCQError})
			c.eventCame(verbs.Event{Type: verbs.EventSRQError})
			_, err := engine.Progress()
			require.NoError(t, err)
			require.Equal(t, pe.Running, c.State())
			var reported []error
			c.OnConnection(func(_ *Connection, state ConnectionState, err error) {
				if state == Failed {
					reported = append(reported, err)
				}
			})
			c.eventCame(event(c, conn))
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
	pool, err := c.Pool(4, func(task *Task) { require.NoError(t, task.Free()) }, func(task *Task, err error) {
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
		task, err := pool.Write(conn, nil, nil)
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

// What the peer has acknowledged before it disconnects completes first, however much that is:
// the end of the connection would flush what has not been looked for yet.
func TestDisconnectComesAfterAcknowledgements(t *testing.T) {
	for name, connect := range map[string]func(t *testing.T, a, b *Connections){
		"by descriptors": func(t *testing.T, a, b *Connections) {
			x, ours, err := a.Export()
			require.NoError(t, err)
			y, theirs, err := b.Export()
			require.NoError(t, err)
			require.NoError(t, x.Connect(theirs))
			require.NoError(t, y.Connect(ours))
		},
		"by address": func(t *testing.T, a, b *Connections) {
			l, err := b.Listen(":0", ListenConfig{})
			require.NoError(t, err)
			_, err = a.Dial(netip.AddrPortFrom(b.GID().GID.Addr(), l.Addr().Port()).String(), DialConfig{})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const tasks = 4 * lane.PollBudget
			var conns [2]*Connection
			var ctxs [2]*Connections
			completed := 0
			for i := range ctxs {
				dev := must(soft.Open(soft.Config{}))
				ctxs[i] = must(New(dev, Config{Engine: pe.New(pe.Config{}), SendQueueSize: tasks, CloseTimeout: time.Minute}))
				t.Cleanup(func() {
					require.NoError(t, ctxs[i].Engine().Close())
					require.NoError(t, dev.Close())
				})
				ctxs[i].OnConnection(func(conn *Connection, s ConnectionState, err error) {
					conns[i] = conn
					if s == Closed && i == 0 {
						require.ErrorIs(t, err, ErrPeerClosed)
					}
				})
			}
			a, b := ctxs[0], ctxs[1]
			until := func(done func() bool, driven ...*Connections) {
				for limit := time.Now().Add(5 * time.Minute); !done(); {
					for _, c := range driven {
						must(c.Engine().Progress())
					}
					require.True(t, time.Now().Before(limit), "it never happened")
				}
			}
			writes := must(a.Pool(tasks, func(task *Task) {
				completed++
				require.Equal(t, Ready, conns[0].State())
				require.NoError(t, task.Free())
			}, func(task *Task, err error) {
				require.NoError(t, err)
				require.NoError(t, task.Free())
			}))
			require.NoError(t, a.Start())
			require.NoError(t, b.Start())
			connect(t, a, b)
			ready := func(conn *Connection) bool { return conn != nil && conn.State() == Ready }
			until(func() bool { return ready(conns[0]) && ready(conns[1]) }, a, b)
			// The last write shows that b's device has acknowledged all.
			target := must(mmap.Alloc(b.Device(), 4, mmap.LocalReadWrite|mmap.RemoteWrite))
			source := must(mmap.Alloc(a.Device(), 1, mmap.LocalReadWrite))
			source.Bytes()[0] = 1
			remote := must(mmap.Import(a.Device(), must(target.Export(b.Device()))))
			var bufs bufinv.Inventory
			for range tasks - 1 {
				require.NoError(t, must(writes.Write(conns[0], nil, nil)).Submit())
			}
			require.NoError(t, must(writes.Write(conns[0], bufs.Source(source, 0, 1), bufs.Target(remote, 0, 1))).Submit())
			must(a.Engine().Progress())
			until(func() bool { return (*atomic.Uint32)(unsafe.Pointer(&target.Bytes()[0])).Load() != 0 })
			require.NoError(t, conns[1].Close())
			until(func() bool { return a.written.pending.Load() || a.manager.pending.Load() }, b)
			require.Less(t, completed, tasks-lane.PollBudget)
			until(func() bool { return conns[0].State() == Closed && completed == tasks }, a, b)
		})
	}
}

// One pass may find the peer's first message together with what makes the connection Ready: the
// program sees the message in Running.
func TestRunningBeforeTheFirstMessage(t *testing.T) {
	for name, active := range map[string]bool{"sends the ready signal": true, "receives the ready signal": false} {
		t.Run(name, func(t *testing.T) {
			var ctxs [2]*Connections
			var conns [2]*Connection
			var descs [2][]byte
			var pools [2]*Pool
			var seen []pe.State
			sent := 0
			for i := range ctxs {
				dev := must(soft.Open(soft.Config{}))
				c := must(New(dev, Config{Engine: pe.New(pe.Config{})}))
				t.Cleanup(func() {
					require.NoError(t, c.Engine().Close())
					require.NoError(t, dev.Close())
				})
				pools[i] = must(c.Pool(1, func(task *Task) {
					sent++
					require.NoError(t, task.Free())
				}, func(_ *Task, err error) { require.NoError(t, err) }))
				require.NoError(t, c.Receive(1, 0, func(*Message) { seen = append(seen, c.State()) }))
				require.NoError(t, c.Start())
				var err error
				conns[i], descs[i], err = c.Export()
				require.NoError(t, err)
				must(c.Engine().Progress())
				ctxs[i] = c
			}
			for i, conn := range conns {
				require.NoError(t, conn.Connect(descs[1-i]))
				conn.finishTransition()
			}
			from, to := 0, 1
			if conns[to].establishment.(*rcSignal).active != active {
				from, to = to, from
			}
			ctxs[to].Flush() // posts the signal, and looks for nothing
			require.NoError(t, must(pools[from].Send(conns[from], nil)).Submit())
			for limit := time.Now().Add(5 * time.Minute); sent == 0; {
				must(ctxs[from].Engine().Progress())
				require.True(t, time.Now().Before(limit), "the message was never sent")
			}
			for limit := time.Now().Add(5 * time.Minute); len(seen) == 0; {
				must(ctxs[to].Engine().Progress())
				require.True(t, time.Now().Before(limit), "the message never came")
			}
			require.Equal(t, []pe.State{pe.Running}, seen)
		})
	}
}
