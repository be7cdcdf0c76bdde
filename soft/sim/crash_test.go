package sim_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A crash takes back a restart that has not happened yet.
func TestCrashBeforeRestart(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("a")
		h.Run(func(ctx context.Context, _ verbs.Device) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		})
		s.Run(time.Second)
		h.Crash()
		h.Restart()
		h.Crash()
		s.Run(2 * time.Second)
		require.True(s, h.Crashed())
		require.Equal(s, 1, h.Starts())
		h.Restart()
		s.Run(time.Second)
		require.Equal(s, 2, h.Starts())
	})
}

// A host without a program gets another device by a restart.
func TestRestartWithoutProgram(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("a")
		old := h.Device()
		h.Crash()
		_, err := old.AllocPD()
		require.ErrorIs(s, err, sim.ErrCrashed)
		h.Restart()
		require.False(s, h.Crashed())
		pd, err := h.Device().AllocPD()
		require.NoError(s, err)
		require.NoError(s, pd.Close())
		_, err = old.AllocPD()
		require.ErrorIs(s, err, sim.ErrCrashed)
	})
}

// What a program has left open when its host crashed sends nothing after a restart.
func TestRestartLeavesTheOldDevice(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		a, b := s.Host("a"), s.Host("b")
		b.Device()
		s.Cut(b, a) // so that a repeats its request
		a.Run(func(ctx context.Context, dev verbs.Device) error {
			if a.Starts() > 1 {
				return nil
			}
			engine := pe.New(pe.Config{})
			r, err := rdma.New(dev, rdma.Config{Engine: engine})
			if err != nil {
				return err
			}
			r.OnStateChange(func(_, next pe.State) {
				if next == pe.Starting {
					_, err := r.Dial(b.Addr().String()+":7471", rdma.DialConfig{})
					r.Fail(err)
				}
			})
			return errors.Join(r.Start(), engine.Run(ctx))
		})
		s.Run(10 * time.Millisecond)
		require.NotZero(s, s.Packets())
		a.Crash()
		a.Restart()
		s.Run(time.Millisecond)
		require.Equal(s, 2, a.Starts())
		sent := s.Packets()
		s.Run(time.Hour)
		require.Equal(s, sent, s.Packets())
	})
}

// Goroutines that sleep end with the program, even if it has returned before.
func TestSleepersEndWithTheTest(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("a")
		var ended time.Duration
		h.Run(func(ctx context.Context, _ verbs.Device) error {
			h.Go(func() {
				for ctx.Err() == nil {
					h.Sleep(time.Hour)
				}
				ended = s.Now()
			})
			h.Sleep(time.Second)
			return nil
		})
		s.Host("without a program").Go(func() { s.Host("without a program").Sleep(time.Hour) })
		s.Run(time.Minute)
		require.Less(s, ended, 2*time.Second)
		require.NotZero(s, ended)
	})
}

// Hosts get addresses that no other host has.
func TestAddressesAreFree(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		s.AddHost(sim.HostConfig{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}})
		require.Equal(s, "10.0.0.3", s.Host("b").Addr().String())
		require.Equal(s, "10.0.0.4", s.Host("c").Addr().String())
	})
}
