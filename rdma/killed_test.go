//go:build linux && cgo && verbs

package rdma_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/process"
	"github.com/verbena-rdma/verbena/verbs"
)

const killedPeerReceives = 8

// TestVictim is the program that TestGuestKilledPeer starts and kills.
func TestVictim(t *testing.T) {
	open := openAdapter
	switch os.Getenv("VERBENA_VICTIM") {
	case "":
		t.Skip("a part of TestGuestKilledPeer")
	case "soft":
		open = openFarSoft
	}
	engine := pe.New(pe.Config{})
	r := &rig{t: t, engine: engine}
	s := r.side(open(t), rdma.Config{})
	pool := must(s.ctx.ReceivePool(killedPeerReceives, func(task *rdma.ReceiveTask) {
		require.NoError(t, task.Submit())
	}, func(*rdma.ReceiveTask, error) {}))
	s.ctx.OnStateChange(func(_, next pe.State) {
		for i := 0; next == pe.Running && i < killedPeerReceives; i++ {
			require.NoError(t, must(pool.Alloc(s.bufs.Target(s.mem, i<<18, 1<<18))).Submit())
		}
	})
	require.NoError(t, s.ctx.Start())
	conn, desc := must2(s.ctx.Export())
	fmt.Printf("%x\n%x\n", desc, must(s.mem.Export(s.dev)))
	require.NoError(t, conn.Connect(hexLine(t, bufio.NewReader(os.Stdin))))
	require.NoError(t, engine.Run(t.Context()))
}

// killTest keeps tasks under way to a process, which it kills in the middle.
type killTest struct {
	*side
	victim *process.Process
	done   int
	errs   []error
}

func keepSubmitting[T anyTask](s *killTest, again func(T) error) (done func(T), failed func(T, error)) {
	return func(task T) {
			if s.done++; s.done == 20 {
				s.victim.Send(os.Kill)
			}
			if again(task) != nil {
				require.NoError(s.t, task.Free())
			}
		}, func(task T, err error) {
			s.errs = append(s.errs, err)
			require.NoError(s.t, task.Free())
		}
}

// killedOperations are the operations: each makes a pool, and returns what takes the task
// with that number out of it.
var killedOperations = []struct {
	name    string
	prepare func(s *killTest) func(i int) *rdma.Task
}{
	{"writes", func(s *killTest) func(int) *rdma.Task {
		done, failed := keepSubmitting(s, func(t *rdma.Task) error { return t.Submit() })
		pool := must(s.ctx.Pool(killedPeerReceives, done, failed))
		return func(i int) *rdma.Task {
			return must(pool.Write(s.conns[0], s.bufs.Source(s.mem, i<<18, 1<<18), s.bufs.Target(s.peer, i<<18, 1<<18)))
		}
	}},
	{"reads", func(s *killTest) func(int) *rdma.Task {
		done, failed := keepSubmitting(s, func(task *rdma.Task) error {
			return task.Submit()
		})
		pool := must(s.ctx.Pool(killedPeerReceives, done, failed))
		return func(i int) *rdma.Task {
			return must(pool.Read(s.conns[0], s.bufs.Source(s.peer, i<<18, 1<<18), s.bufs.Target(s.mem, i<<18, 1<<18)))
		}
	}},
	{"sends", func(s *killTest) func(int) *rdma.Task {
		done, failed := keepSubmitting(s, func(t *rdma.Task) error { return t.Submit() })
		pool := must(s.ctx.Pool(killedPeerReceives, done, failed))
		return func(i int) *rdma.Task {
			return must(pool.Send(s.conns[0], s.bufs.Source(s.mem, i<<18, 1<<18)))
		}
	}},
}

// A peer whose process is killed in the middle of a transfer does not answer any
// more: the task under way fails with that, the others are flushed, the context
// ends by itself, and so does the program. Short: each device pair with one of the operations.
func TestGuestKilledPeer(t *testing.T) {
	requireGuest(t)
	for i, on := range []struct {
		name string
		own  func(*testing.T) verbs.Device
		peer string
	}{
		{"rxe, peer on rxe", openAdapter, "rxe"},
		{"rxe, peer on soft", openAdapter, "soft"},
		{"soft, peer on rxe", openFarSoft, "rxe"},
	} {
		for j, what := range killedOperations {
			if testing.Short() && i != j {
				continue
			}
			t.Run(on.name+", "+what.name, func(t *testing.T) {
				r := &rig{t: t, engine: pe.New(pe.Config{})}
				t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
				r.a = r.side(on.own(t), rdma.Config{
					AckTimeout: 400 * time.Millisecond, // a machine that stands still for less is no peer that is gone
				})
				s := &killTest{side: r.a}
				take := what.prepare(s)
				s.connect(on.peer)
				r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
				for i := range killedPeerReceives {
					require.NoError(t, take(i).Submit())
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				require.ErrorIs(t, r.engine.Run(ctx), rdma.ErrRetryExceeded)
				require.Error(t, s.victim.Wait(), "it was killed")
				require.GreaterOrEqual(t, s.done, 20)
				require.Len(t, s.errs, killedPeerReceives, "every task came back")
				require.ErrorIs(t, s.errs[0], rdma.ErrRetryExceeded)
				for _, err := range s.errs[1:] {
					require.ErrorIs(t, err, rdma.ErrFlushed)
				}
				require.ErrorIs(t, s.ctx.Err(), rdma.ErrRetryExceeded)
				require.ErrorIs(t, s.conns[0].Err(), rdma.ErrRetryExceeded)
				require.Equal(t, []pe.State{pe.Starting, pe.Running, pe.Stopping, pe.Idle}, s.states)
			})
		}
	}
}

// connect starts the peer and connects to it.
func (s *killTest) connect(peer string) {
	t := s.t
	s.victim = startTest(t, "^TestVictim$", "VERBENA_VICTIM="+peer)
	lines := bufio.NewReader(s.victim.Out)
	peerDesc := hexLine(t, lines)
	s.peer = must(mmap.Import(s.dev, hexLine(t, lines)))
	require.NoError(t, s.ctx.Start())
	conn, desc := must2(s.ctx.Export())
	s.conns = append(s.conns, conn)
	must(fmt.Fprintf(s.victim.In, "%x\n", desc))
	require.NoError(t, conn.Connect(peerDesc))
}
