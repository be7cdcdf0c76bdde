package sim_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestPingPong(t *testing.T) {
	sim.Check(t, 20, func(s *sim.Sim) {
		const rounds = 100
		a, b := s.Host("a"), s.Host("b")
		done := 0
		server := func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", rounds, &done) }
		client := func(ctx context.Context, dev verbs.Device) error {
			return pingPong(ctx, dev, a.Addr().String()+":7471", rounds, &done)
		}
		s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Jitter: time.Microsecond, Loss: 0.01})
		a.Run(server)
		b.Run(client)
		s.RunUntil(func() bool { return done == 2 }, time.Minute)
	})
}

// pingPong sends and receives messages in turns, with a peer that it dials, or that dials it.
func pingPong(ctx context.Context, dev verbs.Device, peer string, rounds int, done *int) error {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	defer r.Close()
	mem, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	defer mem.Close()
	bufs, err := bufinv.New(16)
	if err != nil {
		return err
	}
	defer bufs.Close()
	n := 0
	sends, err := r.Pool(min(rounds, 64), func(t *rdma.Task) { r.Fail(t.Free()) }, func(t *rdma.Task, err error) { _ = t.Free() })
	if err != nil {
		return err
	}
	send := func(c *rdma.Connection) {
		n++
		binary.LittleEndian.PutUint64(mem.Bytes(), uint64(n))
		t, err := sends.Send(c, bufs.Source(mem, 0, 8))
		r.Fail(pe.SubmitOrFree(t, err))
	}
	receives, err := r.ReceivePool(1, func(t *rdma.ReceiveTask) {
		if peer == "" || n < rounds {
			send(t.Connection())
		}
		if n < rounds {
			r.Fail(t.Submit())
			return
		}
		*done++
		r.Fail(t.Free())
	}, func(t *rdma.ReceiveTask, err error) { _ = t.Free() })
	if err != nil {
		return err
	}
	r.OnConnection(func(c *rdma.Connection, state rdma.ConnectionState, err error) {
		r.Fail(err)
		if peer != "" && state == rdma.Ready {
			send(c)
		}
	})
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		t, err := receives.Alloc(bufs.Target(mem, 64, 8))
		r.Fail(pe.SubmitOrFree(t, err))
		if peer == "" {
			_, err = r.Listen(":7471", rdma.ListenConfig{})
		} else {
			_, err = r.Dial(peer, rdma.DialConfig{})
		}
		r.Fail(err)
	})
	if err := r.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

func TestClock(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("a")
		h.SetClockRate(2)
		began := h.Now()
		s.Run(time.Second)
		require.Equal(s, 2*time.Second, h.Now().Sub(began))
	})
}

// A program may end with the error of its device, before its context has ended.
func TestCrashEndsPrograms(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("a")
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			engine := pe.New(pe.Config{})
			defer engine.Close()
			r, err := rdma.New(dev, rdma.Config{Engine: engine})
			if err != nil {
				return err
			}
			if err := r.Start(); err != nil {
				return err
			}
			return engine.Run(context.WithoutCancel(ctx))
		})
		s.After(time.Second, h.Crash)
		s.After(2*time.Second, h.Restart)
		s.Run(3 * time.Second)
		require.Equal(s, 2, h.Starts())
		s.After(0, h.Crash)
	})
}

// A device repeats the first packets that it sends, too.
func TestFirstPacketsAreLost(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		a, b := s.Host("a"), s.Host("b")
		done := 0
		a.Run(func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", 1, &done) })
		b.Run(func(ctx context.Context, dev verbs.Device) error {
			return pingPong(ctx, dev, a.Addr().String()+":7471", 1, &done)
		})
		s.SetDefaultLink(sim.LinkConfig{Loss: 1})
		s.After(time.Millisecond, func() { s.SetDefaultLink(sim.LinkConfig{}) })
		s.RunUntil(func() bool { return done == 2 }, time.Minute)
	})
}
