package rdma_test

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// program is a program of its own: a device, an engine and a goroutine.
type program struct {
	dev    verbs.Device
	engine *pe.Engine
	ctx    *rdma.Connections
	mem    *mmap.Map
	bufs   *bufinv.Inventory
	conn   *rdma.Connection
}

func newProgram(t *testing.T) *program {
	p := &program{}
	p.dev = must(soft.Open(soft.Config{}))
	p.engine = pe.New(pe.Config{Spin: -1}) // sleeps whenever it can
	p.ctx = must(rdma.New(p.dev, rdma.Config{Permissions: mmap.RemoteRead | mmap.RemoteAtomic}))
	p.mem = must(mmap.Alloc(p.dev, 4096, everything))
	p.bufs = must(bufinv.New(16))
	require.NoError(t, p.engine.Connect(p.ctx))
	t.Cleanup(func() {
		require.NoError(t, p.ctx.Close())
		require.NoError(t, p.engine.Close())
		require.NoError(t, p.bufs.Close())
		require.NoError(t, p.mem.Close())
		require.NoError(t, p.dev.Close())
	})
	return p
}

// connectPrograms has the two programs connect when they start.
func connectPrograms(t *testing.T, ps ...*program) {
	type end struct{ desc chan []byte }
	ends := []end{{make(chan []byte, 1)}, {make(chan []byte, 1)}}
	for i, p := range ps {
		own, other := ends[i].desc, ends[1-i].desc
		p.ctx.OnStateChange(func(_, next pe.State) {
			if next != pe.Starting {
				return
			}
			conn, desc, err := p.ctx.Export()
			require.NoError(t, err)
			p.conn = conn
			own <- desc
			go func() {
				peer := <-other
				_ = p.engine.Do(func() { assert.NoError(t, conn.Connect(peer)) })
			}()
		})
	}
}

// Two engines that sleep whenever they can, each on its own goroutine, play
// ping-pong, and are stopped from outside.
func TestTwoEnginesAsleep(t *testing.T) {
	const rounds = 200
	a, b := newProgram(t), newProgram(t)
	connectPrograms(t, a, b)
	finished := make(chan struct{})
	a.pingPong(t, true, rounds, finished)
	b.pingPong(t, false, rounds, finished)

	timeout, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ctx, end := context.WithCancel(timeout)
	var wg sync.WaitGroup
	for _, p := range []*program{a, b} {
		require.NoError(t, p.ctx.Start())
		wg.Go(func() { assert.ErrorIs(t, p.engine.Run(ctx), context.Canceled) })
	}
	select {
	case <-finished:
	case <-timeout.Done():
	}
	assert.NoError(t, timeout.Err(), "the ping-pong did not end")
	end()
	wg.Wait()
	assert.NoError(t, a.ctx.Err())
	assert.NoError(t, b.ctx.Err())
}

// pingPong has the program answer each number with the next one.
func (p *program) pingPong(t *testing.T, first bool, rounds uint64, finished chan struct{}) {
	// An answer may come before the send that it answers has completed.
	sends := must(p.ctx.Pool(int(rounds),
		func(task *rdma.Task) { assert.NoError(t, task.Free()) },
		func(task *rdma.Task, err error) { assert.NoError(t, task.Free()) }))
	send := func(value uint64) {
		binary.BigEndian.PutUint64(p.mem.Bytes(), value)
		task, err := sends.Send(p.conn, p.bufs.Source(p.mem, 0, 8))
		if assert.NoError(t, err) {
			assert.NoError(t, task.Submit())
		}
	}
	expected := uint64(0)
	if first {
		expected = 1
	}
	recvs := must(p.ctx.ReceivePool(4,
		func(task *rdma.ReceiveTask) {
			value := binary.BigEndian.Uint64(task.Destination().Bytes())
			assert.Equal(t, expected, value)
			expected += 2
			assert.NoError(t, task.Submit())
			if value == rounds {
				close(finished)
			} else {
				send(value + 1)
			}
		},
		func(task *rdma.ReceiveTask, err error) {
			assert.ErrorIs(t, err, rdma.ErrFlushed)
			assert.NoError(t, task.Free())
		}))
	p.ctx.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state != rdma.Ready {
			return
		}
		for i := range 4 {
			task, err := recvs.Alloc(p.bufs.Target(p.mem, 64+64*i, 64))
			if assert.NoError(t, err) {
				assert.NoError(t, task.Submit())
			}
		}
		if first {
			send(0)
		}
	})
}
