package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// poll drives an engine by Progress until done reports true. prepare may be nil.
func poll(dev verbs.Device, cfg rdma.Config, prepare func(*rdma.Connections) error, done func() bool) error {
	if cfg.Engine == nil {
		cfg.Engine = pe.New(pe.Config{})
	}
	engine := cfg.Engine
	defer engine.Close()
	r, err := rdma.New(dev, cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	if prepare != nil {
		if err := prepare(r); err != nil {
			return err
		}
	}
	if err := r.Start(); err != nil {
		return err
	}
	for !done() {
		if _, err := engine.Progress(); err != nil {
			return err
		}
	}
	return nil
}

// A test whose programs poll, and never reach what it waits for, ends when the time that it gives
// them is over, after few events: a pass that finds nothing takes the more simulated time, the
// longer nothing happens.
func TestStuckPollers(t *testing.T) {
	events := uint64(0)
	out := failure(t, func(s *sim.Sim) {
		for _, h := range s.Hosts("poller", 2) {
			h.Run(func(ctx context.Context, dev verbs.Device) error {
				return poll(dev, rdma.Config{}, nil, func() bool { return ctx.Err() != nil })
			})
		}
		defer func() { events = s.Events() }()
		s.RunUntil(func() bool { return false }, time.Hour)
	})
	require.Contains(t, out, "the condition does not hold after 1h0m0s of simulated time")
	require.Less(t, events, uint64(200_000)) // 22 million, if each pass took 160 µs at most
}

// A program that polls until a time is hardly late.
func TestPollUntilATime(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("poller")
		var over time.Duration
		h.Run(func(_ context.Context, dev verbs.Device) error {
			start := h.Now()
			err := poll(dev, rdma.Config{}, nil, func() bool { return h.Now().Sub(start) >= 10*time.Second })
			over = s.Now()
			return err
		})
		s.RunUntil(func() bool { return over > 0 }, time.Minute)
		require.InDelta(s, 10*time.Second, over, float64(100*time.Millisecond))
	})
}

// A goroutine that polls the engines of two hosts notices soon what happens at one of them, though
// nothing happens at the other, and so does one that polls while it waits for another program.
func TestPollsOfSeveralHosts(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		quiet, busy, client := s.Host("quiet"), s.Host("busy"), s.Host("client")
		var sent, got, seen time.Duration
		client.Run(func(ctx context.Context, dev verbs.Device) error {
			return withEngine(ctx, dev, rdma.Config{}, func(ctx context.Context, r *rdma.Connections, _ *await.Receiver) error {
				conn, err := await.Dial(ctx, r, busy.Addr().String()+":1", rdma.DialConfig{Timeout: rdma.Forever})
				if err != nil {
					return err
				}
				client.Sleep(20 * time.Second) // keepalives reach the host that is busy
				sent = s.Now()
				if err := await.SendImm(ctx, conn, nil, 1); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			})
		})
		s.Host("watcher").Run(func(ctx context.Context, dev verbs.Device) error {
			err := poll(dev, rdma.Config{}, nil, func() bool { return got > 0 || ctx.Err() != nil })
			seen = s.Now()
			return err
		})
		first, second := pe.New(pe.Config{}), pe.New(pe.Config{})
		require.NoError(s, poll(quiet.Device(), rdma.Config{Engine: first}, nil, func() bool {
			listener := func(r *rdma.Connections) error {
				r.OnStateChange(func(_, next pe.State) {
					if next == pe.Starting {
						_, err := r.Listen(":1", rdma.ListenConfig{})
						r.Fail(err)
					}
				})
				return r.Receive(8, 8, func(*rdma.Message) { got = s.Now() })
			}
			require.NoError(s, poll(busy.Device(), rdma.Config{Engine: second}, listener, func() bool {
				_, err := first.Progress()
				require.NoError(s, err)
				return got > 0
			}))
			return true
		}))
		s.RunUntil(func() bool { return seen > 0 }, time.Minute)
		require.Less(s, got-sent, time.Millisecond)
		require.Less(s, seen-got, time.Millisecond)
	})
}
