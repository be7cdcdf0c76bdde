package sim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// startEngine starts a context, and a goroutine that drives its engine until ctx ends.
func startEngine(ctx context.Context, dev verbs.Device, drive func(*pe.Engine)) error {
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	if err := r.Start(); err != nil {
		return err
	}
	go func() {
		defer func() { _, _ = r.Close(), engine.Close() }()
		drive(engine)
	}()
	return nil
}

// A program that fails does not wait for its goroutines. Those that notice the end of its context
// have the time to end, and the test reports what the program returned and nothing else.
func TestProgramFailsBesideItsGoroutines(t *testing.T) {
	for name, start := range map[string]func(h *sim.Host, ctx context.Context, dev verbs.Device) error{
		"Engine.Run": func(h *sim.Host, ctx context.Context, dev verbs.Device) error {
			return startEngine(ctx, dev, func(e *pe.Engine) { _ = e.Run(ctx) })
		},
		"Engine.Progress": func(h *sim.Host, ctx context.Context, dev verbs.Device) error {
			return startEngine(ctx, dev, func(e *pe.Engine) {
				for ctx.Err() == nil {
					_, _ = e.Progress()
				}
			})
		},
		"Host.Sleep": func(h *sim.Host, ctx context.Context, dev verbs.Device) error {
			go func() {
				for ctx.Err() == nil {
					h.Sleep(time.Second)
				}
			}()
			return nil
		},
		"Host.Go": func(h *sim.Host, ctx context.Context, dev verbs.Device) error {
			h.Go(func() { <-ctx.Done(); h.Go(func() { h.Sleep(time.Second) }) })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := failure(t, func(s *sim.Sim) {
				newServer(s)
				h := s.Host("bad")
				h.Run(func(ctx context.Context, dev verbs.Device) error {
					if err := start(h, ctx, dev); err != nil {
						return err
					}
					h.Sleep(time.Second)
					return errors.New("no more ideas")
				})
				s.Run(time.Minute)
			})
			require.Contains(t, out, "sim: host bad, seed 77: its program returned: no more ideas")
			require.NotContains(t, out, "do not return")
		})
	}
}

// Goroutines that poll or sleep for ever are ended, and their deferred functions are called.
func TestGoroutinesThatNeverEnd(t *testing.T) {
	for name, step := range map[string]func(h *sim.Host, e *pe.Engine){
		"Host.Sleep":      func(h *sim.Host, _ *pe.Engine) { h.Sleep(time.Minute) },
		"Engine.Progress": func(_ *sim.Host, e *pe.Engine) { _, _ = e.Progress() },
	} {
		t.Run(name, func(t *testing.T) {
			ended := false
			out := failure(t, func(s *sim.Sim) {
				h := s.Host("bad")
				h.Run(func(ctx context.Context, dev verbs.Device) error {
					err := startEngine(ctx, dev, func(e *pe.Engine) {
						defer func() { ended = true }()
						for {
							step(h, e)
						}
					})
					return errors.Join(err, errors.New("no more ideas"))
				})
				s.Run(time.Minute)
			})
			require.Contains(t, out, "no more ideas")
			require.Contains(t, out, "programs do not return 10m0s after their context has ended:\n  host bad: 1 goroutines sleep or poll, and no program runs")
			require.True(t, ended)
		})
	}
}

// A goroutine that waits for something that nobody does cannot be ended. The test names it, and
// the other tests of the binary go on.
func TestGoroutineWaitsForEver(t *testing.T) {
	out, err := inChild(t, func() {
		t.Run("bad", func(t *testing.T) {
			sim.Check(t, 5, func(s *sim.Sim) {
				s.Host("bad").Run(func(context.Context, verbs.Device) error {
					go waitForEver()
					return errors.New("no more ideas")
				})
				s.Run(time.Second)
			})
		})
		t.Run("next", func(t *testing.T) {
			sim.Check(t, 5, func(s *sim.Sim) { newServer(s); s.Run(time.Second) })
		})
	})
	require.Error(t, err)
	assert.Contains(t, out, "sim: host bad, seed 1: its program returned: no more ideas")
	assert.Contains(t, out, "sim: seed 1: 1 goroutines of the test still wait when it has ended")
	assert.Regexp(t, `(?s)\[chan receive.*waitForEver\(.*created by .*TestGoroutineWaitsForEver`, out)
	assert.Contains(t, out, "go test -run '^TestGoroutineWaitsForEver$/^bad$' -sim.seed=1")
	assert.Contains(t, out, "--- PASS: TestGoroutineWaitsForEver/next")
	assert.NotContains(t, out, "panic: ")
}

func waitForEver() { <-make(chan struct{}) }

// A simulation outside of tests returns an error that names it.
func TestSimulateGoroutineWaitsForEver(t *testing.T) {
	out, err := inChild(t, func() {
		err := sim.Simulate(3, func(s *sim.Sim) {
			s.Host("bad").Run(func(context.Context, verbs.Device) error { go waitForEver(); return nil })
			s.Run(time.Second)
		})
		t.Log(err)
	})
	require.Error(t, err) // the goroutine is found at the end of the binary, too
	assert.Contains(t, out, "sim: seed 3: 1 goroutines of the test still wait when it has ended")
	assert.Contains(t, out, "--- SKIP")
	assert.NotContains(t, out, "panic: ")
}

// Other panics pass.
func TestPanicOfTheTest(t *testing.T) {
	out, err := inChild(t, func() {
		sim.Check(t, 1, func(*sim.Sim) { panic("out of my mind") })
	})
	require.Error(t, err)
	assert.Contains(t, out, "panic: out of my mind")
}
