package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// Two peers that take no message hold as many tasks at the device as a context can have there.
// Other connections connect, run tasks, notice that their peer is dead, and close with a notice.
func TestPeersThatTakeNothing(t *testing.T) {
	for name, test := range map[string]func(f *sendRoom){
		"connect": func(f *sendRoom) {
			f.fill()
			f.link()
			f.drive(time.Second)
			assert.Equal(f.t, rdma.Ready, f.atA.State())
			assert.Equal(f.t, rdma.Ready, f.atC.State())
		},
		"tasks": func(f *sendRoom) {
			f.link()
			f.fill()
			done := 0
			for range 20 {
				task := must(f.pool.Write(f.atA, bufinv.Source(f.a.mem, 0, 8), bufinv.Target(f.peer, 0, 8)))
				require.NoError(f.t, pe.SubmitOrFree(task, nil, func(task *rdma.Task, err error) {
					assert.NoError(f.t, err)
					assert.NoError(f.t, task.Free())
					done++
				}))
			}
			f.drive(time.Second)
			assert.Equal(f.t, 20, done)
		},
		"keepalive": func(f *sendRoom) {
			f.link()
			f.fill()
			f.sim.Host("c").Pause()
			f.drive(3 * time.Second)
			assert.ErrorIs(f.t, f.atA.Err(), rdma.ErrRetryExceeded)
			f.sim.Host("c").Resume()
		},
		"close": func(f *sendRoom) {
			f.link()
			f.fill()
			require.NoError(f.t, f.atA.Close())
			f.drive(500 * time.Millisecond) // half of Config.CloseTimeout
			assert.ErrorIs(f.t, f.atC.Err(), rdma.ErrPeerClosed)
			f.drive(time.Second)
			assert.Equal(f.t, rdma.Closed, f.atA.State())
		},
	} {
		runSimulated(t, name, 2, func(t *testing.T, s *sim.Sim) {
			f := &sendRoom{rig: newSimRig(s, rdma.Config{
				MaxConnections: 3, SendQueueSize: 256, Keepalive: 200 * time.Millisecond, SilenceTimeout: time.Second,
			}, rdma.Config{MaxConnections: 2})}
			f.c = f.sideThatStays(s.Host("c").Device(), rdma.Config{})
			f.peer = f.imported(f.c, f.a)
			t.Cleanup(func() { require.NoError(t, f.peer.Close()) })
			require.NoError(t, f.c.ctx.Start())
			f.connect(2)
			f.pool = must(f.a.ctx.Pool(1000, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]))
			test(f)
			require.Equal(t, pe.Running, f.a.ctx.State())
			for _, conn := range f.a.conns {
				require.Equal(t, rdma.Ready, conn.State())
			}
			require.Zero(t, f.ended, "their peers have taken nothing")
		})
	}
}

// sendRoom is a context a with two connections to a peer b that has no receives, and one to c.
type sendRoom struct {
	*rig
	c        *side
	peer     *mmap.Map // c's, imported by a
	pool     *rdma.Pool
	atA, atC *rdma.Connection // the connection of a and c
	ended    int              // messages for b that have ended
}

// link connects a and c.
func (f *sendRoom) link() {
	var atA, atC []byte
	f.atA, atA = must2(f.a.ctx.Export())
	f.atC, atC = must2(f.c.ctx.Export())
	require.NoError(f.t, f.atA.Connect(atC))
	require.NoError(f.t, f.atC.Connect(atA))
}

// fill sends b more messages than the device takes, and waits until it has them.
func (f *sendRoom) fill() {
	f.drive(100 * time.Millisecond) // the connection to c, if there is one, is Ready
	for range 300 {
		for _, conn := range f.a.conns {
			require.NoError(f.t, pe.SubmitOrFree(must(f.pool.Send(conn, nil)), nil, func(task *rdma.Task, _ error) {
				f.ended++
				assert.NoError(f.t, task.Free())
			}))
		}
	}
	f.drive(100 * time.Millisecond)
}

// Requests at the device are never more than the completion queue has room for, with a request of
// each connection, whatever pools are made in Running.
func TestRequestsFitTheCompletionQueue(t *testing.T) {
	for name, limit := range map[string]int{"default": 0, "the device's largest": 100} {
		t.Run(name, func(t *testing.T) {
			const connections, each = 8, 125
			dev := openFaulty(t)
			capacity, posted := 0, 0
			dev.Set(func(h *faultydevice.Hooks) {
				h.Query = func(a *verbs.DeviceAttr) error {
					if limit != 0 {
						a.MaxCQE = limit
					}
					return nil
				}
				h.CreateCQ = func(init *verbs.CQInit) error {
					capacity = init.Capacity
					return nil
				}
			})
			cfg := rdma.Config{MaxConnections: connections, Keepalive: rdma.None}
			onA := cfg
			onA.SendQueueSize = 256
			r := newRigOn(t, dev, openSoft(t), onA, cfg)
			r.connect(connections)
			ended := 0
			pool := must(r.a.ctx.Pool(connections*each, func(task *rdma.Task) {
				ended++
				assert.NoError(t, task.Free())
			}, func(_ *rdma.Task, err error) { assert.NoError(t, err) }))
			dev.WithholdCompletions()
			dev.Set(func(h *faultydevice.Hooks) {
				h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
					n, err := qp.PostSend(wrs)
					posted += n
					return n, err
				}
			})
			for _, conn := range r.a.conns {
				for range each {
					require.NoError(t, must(pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8))).Submit())
				}
			}
			for range 100 {
				must(r.engine.Progress())
			}
			assert.LessOrEqual(t, posted, capacity)
			assert.Greater(t, posted, capacity-connections)
			dev.Set(func(h *faultydevice.Hooks) { h.Poll, h.Arm = nil, nil })
			r.until("all have ended", func() bool { return ended == connections*each })
		})
	}
}
