package rdma_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/soak"
)

// roundTimeout is more than a round takes, on a machine however busy.
const roundTimeout = 5 * time.Minute

var stopSeed = flag.Uint64("stop.seed", 1, "seed of the first round of TestSoakStopAtAnyMoment")

// Both contexts are stopped, at random moments and in all ways, with tasks of all
// kinds in flight and others in the program's hands: every task comes back exactly
// once, every context gets to Idle, nothing leaks.
func TestSoakStopAtAnyMoment(t *testing.T) {
	rounds, each := soak.Rounds(t, 500, 10_000), 100 // with the same contexts
	var total taskCounts
	for seed := *stopSeed; seed < *stopSeed+uint64(rounds); {
		s := newStress(t, seed)
		for range each {
			s.round(seed)
			seed++
		}
		for _, e := range s.ends {
			total.add(e.seen)
		}
		s.close()
	}
	t.Logf("%d rounds of two contexts: %d were stopped in Starting, %d with tasks in flight, %d stopped by themselves; %d submissions, %d succeeded, %d failed",
		rounds, total.starting, total.busy, total.broken, total.submitted, total.succeeded, total.failed)
	assert.Positive(t, total.starting)
	assert.Positive(t, total.busy)
	assert.Positive(t, total.broken)
	assert.Positive(t, total.succeeded)
}

// round takes both contexts from Idle to Idle.
func (s *stress) round(seed uint64) {
	defer func() {
		if s.t.Failed() {
			s.t.Logf("in the round with the seed %d; to try again: go test -race -run TestSoakStopAtAnyMoment ./rdma -stop.seed %d", seed, s.seed)
		}
	}()
	s.rng = rand.New(rand.NewPCG(seed, 1))
	s.left, s.event = 0, nil
	for _, e := range s.ends {
		require.NoError(s.t, e.dev.SetFaults(s.randomFaults(seed)))
		require.NoError(s.t, e.ctx.Start())
	}
	s.connect()
	s.scheduleStop()
	s.settle()
	for _, e := range s.ends {
		e.check()
	}
}

// randomFaults returns faults of the network, in most cases none.
func (s *stress) randomFaults(seed uint64) soft.Faults {
	switch s.rng.IntN(20) {
	case 0:
		return soft.Faults{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.02, Seed: seed}
	case 1:
		return soft.Faults{Loss: 1}
	}
	return soft.Faults{}
}

// connect begins one to three connections, not all of them at both ends.
func (s *stress) connect() {
	a, b := s.ends[0], s.ends[1]
	for range 1 + s.rng.IntN(stressConnections) {
		connA, descA := must2(a.ctx.Export())
		connB, descB := must2(b.ctx.Export())
		a.conns, b.conns = append(a.conns, connA), append(b.conns, connB)
		if s.rng.IntN(40) > 0 {
			require.NoError(s.t, connA.Connect(descB))
		}
		if s.rng.IntN(40) > 0 {
			require.NoError(s.t, connB.Connect(descA))
		}
	}
}

// scheduleStop has both contexts stopped, at a moment and in a way of its choice.
func (s *stress) scheduleStop() {
	stop := func() {
		e := pick(s.rng, s.ends[:]...)
		require.NoError(s.t, e.ctx.Stop())
		require.NoError(s.t, e.ctx.Stop())
	}
	moment := s.rng.IntN(100)
	switch s.rng.IntN(5) {
	case 0: // between two passes
		s.drive(moment)
		stop()
	case 1: // in a callback, unless it never comes
		s.left, s.event = 1+moment, stop
		s.drive(120)
	case 2: // Run is ended in a callback
		ctx, cancel := context.WithCancel(context.Background())
		s.left, s.event = 1+moment, cancel
		s.run(ctx, cancel, time.Millisecond)
	case 3: // Run is ended from outside
		ctx, cancel := context.WithCancel(context.Background())
		s.run(ctx, cancel, time.Duration(moment)*10*time.Microsecond)
	case 4: // another goroutine has a function stop one
		var wg sync.WaitGroup
		wg.Go(func() {
			for range moment {
				runtime.Gosched()
			}
			assert.NoError(s.t, s.engine.Do(stop))
		})
		s.drive(moment)
		wg.Wait()
	}
	s.drive(s.rng.IntN(20))
}

func (s *stress) drive(passes int) {
	for i := 0; i < passes && s.engine.Active() > 0; i++ {
		_, err := s.engine.Progress()
		require.NoError(s.t, err)
	}
}

// run drives the engine with Run, and ends it after a time at the latest.
func (s *stress) run(ctx context.Context, cancel func(), limit time.Duration) {
	defer cancel()
	defer time.AfterFunc(limit, cancel).Stop()
	// Nothing else would end a Run that waits for a task that was lost.
	defer time.AfterFunc(roundTimeout, func() {
		panic(fmt.Sprintf("Run does not return, in a round after seed %d", s.seed))
	}).Stop()
	err := s.engine.Run(ctx)
	if err == nil {
		require.Zero(s.t, s.engine.Active())
		return
	}
	require.ErrorIs(s.t, err, context.Canceled)
	held := 0
	for _, e := range s.ends {
		if e.ctx.State() != pe.Idle {
			require.NotEmpty(s.t, e.held)
			held++
		}
	}
	if held > 0 {
		require.ErrorIs(s.t, err, pe.ErrTasksHeld)
	} else {
		require.NotErrorIs(s.t, err, pe.ErrTasksHeld)
	}
}

// settle stops what still runs, and takes both contexts to Idle, polling or in
// event mode.
func (s *stress) settle() {
	late, asleep := s.rng.IntN(2) == 0, s.rng.IntN(3) == 0
	for _, e := range s.ends {
		require.NoError(s.t, e.ctx.Stop())
	}
	step := func(events int) (idle bool) {
		for _, e := range s.ends {
			e.freeHeld(late, asleep || events == 0)
		}
		return s.engine.Active() == 0
	}
	if asleep {
		s.sleepUntil(step)
	} else {
		s.pollUntil(step)
	}
	s.pollUntil(func(events int) bool { return events == 0 })
}

// freeHeld frees what is held: a task after each pass, or all of them last of all.
func (e *stressEnd) freeHeld(late, quiet bool) {
	out := len(e.held) + len(e.inFlight)
	require.Equal(e.t, out, e.ctx.Allocated())
	if out > 0 {
		require.Equal(e.t, pe.Stopping, e.ctx.State())
	}
	switch {
	case quiet && len(e.inFlight) == 0:
		e.freeAll()
	case len(e.held) > 0 && !late:
		e.free(pick(e.rng, e.held...))
	}
}

// pollUntil calls Progress until the condition, which is told how many events it
// handled, holds.
func (s *stress) pollUntil(done func(events int) bool) {
	for deadline := time.Now().Add(roundTimeout); ; {
		n, err := s.engine.Progress()
		require.NoError(s.t, err)
		if done(n) {
			return
		}
		require.True(s.t, time.Now().Before(deadline), "a context does not get to Idle:\n%v\n%v", s.ends[0], s.ends[1])
	}
}

// check looks through the books of a round.
func (e *stressEnd) check() {
	require.Equal(e.t, pe.Idle, e.ctx.State())
	require.Equal(e.t, pe.Idle, e.reported)
	require.Empty(e.t, e.inFlight, "tasks that never came back")
	require.Empty(e.t, e.held)
	require.Equal(e.t, e.seen.submitted, e.seen.succeeded+e.seen.failed, "every submission has one callback")
	require.Zero(e.t, e.ctx.Allocated())
	require.Zero(e.t, e.ctx.InFlight())
	require.Empty(e.t, e.ctx.List())
	require.True(e.t, e.full(), "every task is in its pool")
	require.Equal(e.t, e.bufs.Total(), e.bufs.Available(), "buffers leaked")
	require.Equal(e.t, len(e.conns), e.closed, "every connection is reported Closed, once")
	e.conns, e.closed = nil, 0
}
