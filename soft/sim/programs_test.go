package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/verbstest"
	"github.com/verbena-rdma/verbena/verbs"
)

// side is an end of a connection whose engine the test drives itself.
type side struct {
	r      *rdma.Connections
	mem    *mmap.Map
	writes *rdma.Pool
	done   int
}

func newSide(t require.TestingT, dev verbs.Device, engine *pe.Engine) *side {
	x := &side{}
	var err error
	x.r, err = rdma.New(dev, rdma.Config{Engine: engine, Permissions: mmap.RemoteWrite})
	require.NoError(t, err)
	x.mem, err = mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	x.writes, err = x.r.Pool(4, func(t *rdma.Task) { x.done++; _ = t.Free() }, func(t *rdma.Task, err error) { _ = t.Free(); x.r.Fail(err) })
	require.NoError(t, err)
	require.NoError(t, x.r.Start())
	return x
}

// write connects two ends by descriptors and writes from one to the other, while progress
// drives their engines.
func write(t require.TestingT, a, b *side, progress func()) {
	connA, descA, err := a.r.Export()
	require.NoError(t, err)
	connB, descB, err := b.r.Export()
	require.NoError(t, err)
	require.NoError(t, connA.Connect(descB))
	require.NoError(t, connB.Connect(descA))
	for a.r.State() != pe.Running || b.r.State() != pe.Running {
		progress()
	}
	desc, err := b.mem.Export(connB.Context().Device())
	require.NoError(t, err)
	remote, err := mmap.Import(connA.Context().Device(), desc)
	require.NoError(t, err)
	bufs, err := bufinv.New(8)
	require.NoError(t, err)
	for n := range 20 {
		copy(a.mem.Bytes(), "written by itself")
		task, err := a.writes.Write(connA, bufs.Source(a.mem, 0, 17), bufs.Target(remote, 100*n, 17))
		require.NoError(t, pe.SubmitOrFree(task, err))
		for a.done <= n {
			progress()
		}
		require.Equal(t, "written by itself", string(b.mem.Bytes()[100*n:100*n+17]))
	}
	require.NoError(t, a.r.Stop())
	require.NoError(t, b.r.Stop())
	for a.r.State() != pe.Idle || b.r.State() != pe.Idle {
		progress()
	}
	require.NoError(t, remote.Close())
	require.NoError(t, bufs.Close())
}

// The goroutine of the test polls: time goes on while it does.
func TestProgressLoop(t *testing.T) {
	for _, engines := range []int{1, 2} {
		sim.Check(t, 5, func(s *sim.Sim) {
			s.SetDefaultLink(sim.LinkConfig{Latency: 20 * time.Microsecond, Loss: 0.05})
			first := pe.New(pe.Config{})
			second := first
			if engines == 2 {
				second = pe.New(pe.Config{})
			}
			a, b := newSide(s, s.Host("a").Device(), first), newSide(s, s.Host("b").Device(), second)
			write(s, a, b, func() {
				_, err := first.Progress()
				require.NoError(s, err)
				if engines == 2 {
					_, err = second.Progress()
					require.NoError(s, err)
				}
			})
			require.Greater(s, s.Now(), 20*40*time.Microsecond)
			require.NoError(s, first.Close())
			require.NoError(s, second.Close())
		})
	}
}

// Outside a bubble the simulation runs in real time.
func TestRealTime(t *testing.T) {
	s := sim.New(t, 1)
	engine := pe.New(pe.Config{})
	a, b := newSide(t, s.Host("a").Device(), engine), newSide(t, s.Host("b").Device(), engine)
	write(t, a, b, func() {
		_, err := engine.Progress()
		require.NoError(t, err)
	})
	require.NoError(t, engine.Close())
}

func TestSimulatedAndOtherDevices(t *testing.T) {
	sim.Check(t, 1, func(s *sim.Sim) {
		// A device of the system in a bubble never lets time go on, so there is no engine to run.
		engine := pe.New(pe.Config{})
		_, err := rdma.New(s.Host("a").Device(), rdma.Config{Engine: engine})
		require.NoError(s, err)
		other := &systemDevice{Device: s.Host("b").Device()}
		_, err = rdma.New(other, rdma.Config{Engine: engine})
		require.ErrorIs(s, err, pe.ErrInvalid)
		require.ErrorContains(s, err, "only one is simulated")
		require.ErrorIs(s, engine.Arm(), pe.ErrNotSupported)
		require.NoError(s, engine.Close())
	})
}

// An engine whose simulated contexts are closed serves other devices.
func TestEngineLeavesSimulation(t *testing.T) {
	sim.Check(t, 1, func(s *sim.Sim) {
		engine := pe.New(pe.Config{})
		r, err := rdma.New(s.Host("a").Device(), rdma.Config{Engine: engine})
		require.NoError(s, err)
		require.ErrorIs(s, engine.Arm(), pe.ErrNotSupported)
		require.NoError(s, r.Close())
		_, err = rdma.New(&systemDevice{Device: s.Host("b").Device()}, rdma.Config{Engine: engine})
		require.NoError(s, err)
		require.NoError(s, engine.Arm())
		require.NoError(s, engine.Close())
	})
}

// An engine takes turns of a host only while it has contexts there.
func TestEngineLeavesHost(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		a, b := s.Host("a"), s.Host("b")
		engine := pe.New(pe.Config{})
		var contexts [2]*rdma.Connections
		for i, h := range []*sim.Host{a, b} {
			var err error
			contexts[i], err = rdma.New(h.Device(), rdma.Config{Engine: engine})
			require.NoError(s, err)
		}
		require.NoError(s, contexts[0].Close())
		a.Pause()
		ended := false
		b.Go(func() {
			assert.NoError(s, contexts[1].Start())
			assert.NoError(s, engine.Run(context.Background()))
			ended = true
		})
		s.After(time.Second, func() { assert.NoError(s, engine.Do(func() { _ = contexts[1].Stop() })) })
		s.RunUntil(func() bool { return ended }, time.Minute)
		require.NoError(s, engine.Close())
	})
}

// systemDevice hides that a device is simulated.
type systemDevice struct{ verbs.Device }

// A program without an engine, which polls its completion queue.
func TestVerbs(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		h := s.Host("a")
		finished := false
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 16})
			require.NoError(s, err)
			page := make([]byte, 4096)
			mr, err := dev.DefaultPD().RegMR(page, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			require.NoError(s, err)
			qp, err := dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1})
			require.NoError(s, err)
			gids, err := dev.GIDs(1)
			require.NoError(s, err)
			verbstest.ToRTS(s, qp, verbs.RC, verbs.QPAttr{
				Port: 1, Access: verbs.AccessRemoteWrite, PathMTU: 1024, DestQPN: qp.Num(), RQPSN: 1, SQPSN: 1, MinRNRTimer: 12,
				Address: verbs.AddressAttr{DGID: gids[0].GID}, Timeout: 14, RetryCount: 7, RNRRetry: 7,
			})
			copy(page, "by hand")
			_, err = qp.PostSend([]verbs.SendWR{{
				ID: 7, Op: verbs.OpWrite, Flags: verbs.FlagSignaled,
				SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 7, LKey: mr.LKey()}}, RemoteAddr: mr.Addr() + 2048, RKey: mr.RKey(),
			}})
			require.NoError(s, err)
			for wc := make([]verbs.WC, 1); ; {
				n, err := cq.Poll(wc)
				require.NoError(s, err)
				if n > 0 {
					require.Equal(s, verbs.StatusSuccess, wc[0].Status)
					break
				}
			}
			require.Equal(s, "by hand", string(page[2048:2055]))
			require.NoError(s, qp.Close())
			require.NoError(s, mr.Close())
			require.NoError(s, cq.Close())
			finished = true
			return nil
		})
		s.RunUntil(func() bool { return finished }, time.Second)
	})
}
