package rdma_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// How far a program gets before it returns early.
const (
	madeContexts = iota
	startedOne
	startedBoth
	exported
	connecting
	running
	tasksHeld
	lastStage
)

// closer is something that a program has made, and closes in a deferred call.
type closer struct {
	what  string
	close func() error
}

// returnEarly is a program with two contexts that ends somewhere on its way, and
// returns what it has to close, in the order of making.
func returnEarly(t *testing.T, devs [2]verbs.Device, stage int) (made []closer) {
	push := func(what string, close func() error) { made = append(made, closer{what, close}) }
	engine := pe.New(pe.Config{})
	var writes [2]*rdma.Pool
	var receives [2]*rdma.ReceivePool
	var ctxs [2]*rdma.Connections
	var mems [2]*mmap.Map
	var conns [2]*rdma.Connection
	bufs := must(bufinv.New(64))
	for i := range devs {
		push("device", devs[i].Close)
		mems[i] = must(mmap.Alloc(devs[i], 4096, everything))
		push("memory", mems[i].Close)
	}
	remote := must(mmap.Import(devs[0], must(mems[1].Export(devs[1]))))
	push("imported memory", remote.Close)
	push("buffers", bufs.Close)
	push("engine", engine.Close)
	for i := range ctxs {
		ctxs[i] = must(rdma.New(devs[i], rdma.Config{Engine: engine, Name: fmt.Sprint("context ", i), Permissions: everything}))
		require.Same(t, engine, ctxs[i].Engine())
		require.Same(t, engine, ctxs[i].Config().Engine)
		push("context", ctxs[i].Close)
		writes[i] = must(ctxs[i].Pool(4, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
		receives[i] = must(ctxs[i].ReceivePool(4, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	}
	if stage >= startedOne {
		require.NoError(t, ctxs[0].Start())
	}
	if stage >= startedBoth {
		require.NoError(t, ctxs[1].Start())
	}
	if stage >= exported {
		var descs [2][]byte
		for i := range ctxs {
			conns[i], descs[i] = must2(ctxs[i].Export())
		}
		if stage >= connecting {
			require.NoError(t, conns[0].Connect(descs[1]))
			_ = must(engine.Progress())
		}
		if stage >= running {
			require.NoError(t, conns[1].Connect(descs[0]))
			(&rig{t: t, engine: engine}).until("both run", func() bool {
				return ctxs[0].State() == pe.Running && ctxs[1].State() == pe.Running
			})
		}
	}
	if stage >= tasksHeld {
		for i := range 4 {
			write := must(writes[0].Write(conns[0], bufs.Source(mems[0], 0, 64), bufs.Target(remote, 0, 64)))
			receive := must(receives[1].Alloc(bufs.Target(mems[1], 64*i, 64)))
			if i < 2 {
				require.NoError(t, write.Submit())
				require.NoError(t, receive.Submit())
			}
			push("task", func() error {
				if err := errors.Join(write.Free(), receive.Free()); !errors.Is(err, pe.ErrFreed) {
					return fmt.Errorf("freeing a task that was taken back gives %w", err)
				}
				return nil
			})
		}
	}
	return made
}

// After an early return a program closes everything, in the order of its deferred
// calls, or the engine first. Tasks may even be freed afterwards.
func TestCloseAfterAnEarlyReturn(t *testing.T) {
	for stage := range lastStage {
		for _, engineFirst := range []bool{false, true} {
			runSimulated(t, fmt.Sprintf("stage %d, engine first %v", stage, engineFirst), 2, func(t *testing.T, s *sim.Sim) {
				made := returnEarly(t, [2]verbs.Device{s.Host("a").Device(), s.Host("b").Device()}, stage)
				if engineFirst {
					for _, c := range made {
						if c.what == "engine" {
							require.NoError(t, c.close())
						}
					}
				}
				for i := len(made) - 1; i >= 0; i-- {
					if made[i].what != "task" {
						require.NoError(t, made[i].close(), made[i].what)
					}
				}
				for _, c := range made {
					if c.what == "task" {
						require.NoError(t, c.close())
					}
				}
			})
		}
	}
}

// Closed in the wrong order, memory and devices say what is to be closed first, and
// can be closed then.
func TestCloseInTheWrongOrder(t *testing.T) {
	made := returnEarly(t, [2]verbs.Device{must(soft.Open(soft.Config{})), must(soft.Open(soft.Config{}))}, tasksHeld)
	for round := range 4 {
		failed := 0
		for _, c := range made { // devices first
			if c.what == "task" {
				continue
			}
			if err := c.close(); err != nil {
				t.Log(err)
				failed++
			}
		}
		if failed == 0 {
			require.Positive(t, round, "nothing was in the way")
			return
		}
	}
	require.Fail(t, "something cannot be closed")
}

func TestConfigEngine(t *testing.T) {
	dev := openSoft(t)
	engine := pe.New(pe.Config{})
	require.NoError(t, engine.Close())
	_, err := rdma.New(dev, rdma.Config{Engine: engine})
	require.ErrorIs(t, err, pe.ErrClosed)
}
