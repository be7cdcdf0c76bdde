package pe_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

func TestRunWithNothingToDo(t *testing.T) {
	e := newEngine(t, pe.Config{})
	require.NoError(t, e.Run(t.Context()))
	require.NoError(t, e.Connect(newDevice(t, 1)))
	require.NoError(t, e.Run(t.Context()))
	ran := false
	require.NoError(t, e.Do(func() { ran = true }))
	require.NoError(t, e.Run(t.Context()))
	assert.True(t, ran)

	left := 3
	var again func()
	again = func() {
		if left--; left > 0 {
			require.NoError(t, e.Do(again))
		}
	}
	require.NoError(t, e.Do(again))
	require.NoError(t, e.Run(t.Context()))
	assert.Zero(t, left, "functions that functions queue run too")
}

// A function that arrives at the last moment may free the tasks.
func TestRunDoesNotGiveUpOnTasksWhileAFunctionIsPending(t *testing.T) {
	e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 1)
	require.NoError(t, e.Connect(d))
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	quiet := 0
	d.onProgress = func() {
		if d.State() == pe.Stopping {
			if quiet++; quiet == 2 { // the pass in which nothing else happens
				require.NoError(t, e.Do(func() { require.NoError(t, d.jobs.Free(j)) }))
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = e.Run(ctx)
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, pe.ErrTasksHeld)
	assert.Equal(t, pe.Idle, d.State())
}

func TestRunEndsWhenEverythingIsIdle(t *testing.T) {
	e, d := connected(t, 1)
	other := newDevice(t, 1)
	require.NoError(t, e.Connect(other))
	seen := d.record()
	require.NoError(t, e.Do(func() {
		require.NoError(t, d.Start())
		require.NoError(t, other.Start())
	}))
	require.NoError(t, e.Do(func() { require.NoError(t, d.Stop()) }))
	go func() { assert.NoError(t, e.Do(func() { assert.NoError(t, other.Stop()) })) }()
	require.NoError(t, e.Run(t.Context()))
	assert.Len(t, *seen, 3)
	assert.Zero(t, e.Active())
	require.NoError(t, e.Close())
}

func TestRunStopsAndDrainsWhenItsContextEnds(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0, time.Hour} {
		e, d := newEngine(t, pe.Config{Spin: spin}), newDevice(t, 8)
		require.NoError(t, e.Connect(d))
		seen := d.record()
		require.NoError(t, d.Start())
		flushed := 0
		for range 8 {
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			j.done = func(j *job, err error) {
				assert.ErrorIs(t, err, errFlushed)
				flushed++
				require.NoError(t, d.jobs.Free(j))
			}
			require.NoError(t, d.submit(j, 0))
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(cause)
		assert.Equal(t, cause, e.Run(ctx))
		assert.Equal(t, 8, flushed)
		assert.Equal(t, pe.Idle, d.State())
		assert.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
		require.NoError(t, d.Start(), "the engine can be used again")
		require.NoError(t, d.Stop())
		require.NoError(t, e.Close())
	}
}

func TestRunStartsNothingWhileItDrains(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			assert.ErrorIs(t, d.Start(), pe.ErrDraining)
		}
	})
	require.NoError(t, d.Start())
	var again func()
	rounds := 0
	again = func() {
		rounds++
		_ = e.Do(again) // Close refuses it in the end
	}
	require.NoError(t, e.Do(again))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, e.Run(ctx), context.Canceled, "a function that comes back for ever does not hold it up")
	assert.Positive(t, rounds)
	assert.Equal(t, pe.Idle, d.State())
	require.NoError(t, e.Close())
}

func TestRunDoesNotHangOnTasksHeld(t *testing.T) {
	var log bytes.Buffer
	e, d := newEngine(t, pe.Config{Spin: -1, Log: zerolog.New(&log)}), newDevice(t, 4)
	require.NoError(t, e.Connect(d))
	require.NoError(t, d.Start())
	var kept []*job
	for i := range 3 {
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		kept = append(kept, j)
		j.done = func(*job, error) {}
		if i == 0 {
			require.NoError(t, d.submit(j, 0))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		// The stop comes first: Run sleeps, says why, and is then told to end.
		assert.NoError(t, e.Do(func() { assert.NoError(t, d.Stop()) }))
		cancel()
	}()
	err := e.Run(ctx)
	assert.ErrorIs(t, err, pe.ErrTasksHeld)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, `context "dev" cannot become Idle: tasks not freed: 3`)
	assert.Equal(t, pe.Stopping, d.State())
	for _, j := range kept {
		require.NoError(t, d.jobs.Free(j))
	}
	require.NoError(t, e.Run(t.Context()))
	assert.Equal(t, pe.Idle, d.State())
}

// A program whose Submit fails and which does not free the task is not left hanging.
func TestRunReturnsWhenAFailedContextHoldsTasks(t *testing.T) {
	for name, freed := range map[string]bool{"nobody frees them": false, "another goroutine frees them soon": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 1)
				require.NoError(t, e.Connect(d))
				require.NoError(t, d.Start())
				j, err := d.jobs.Alloc()
				require.NoError(t, err)
				broken := errors.New("submit refused")
				require.NoError(t, e.Do(func() { d.Fail(broken) }))
				if freed {
					time.AfterFunc(heldTime/2, func() { assert.NoError(t, e.Do(func() { assert.NoError(t, d.jobs.Free(j)) })) })
				}
				err = e.Run(t.Context())
				assert.ErrorIs(t, err, broken)
				if freed {
					assert.NotErrorIs(t, err, pe.ErrTasksHeld)
					assert.Equal(t, pe.Idle, d.State())
					return
				}
				assert.ErrorIs(t, err, pe.ErrTasksHeld)
				require.NoError(t, d.jobs.Free(j))
				assert.NoError(t, e.Run(t.Context()), "what was returned is not returned again")
				assert.Equal(t, pe.Idle, d.State())
			})
		})
	}
}

// heldTime is how long Run waits for tasks of a context that has failed.
const heldTime = time.Second

func TestRunWarnsOfTasksHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e, d := newEngine(t, pe.Config{Spin: -1, Log: zerolog.New(&log).Level(zerolog.WarnLevel)}), newDevice(t, 1)
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		require.NoError(t, d.Stop())
		go func() {
			synctest.Wait() // Run sleeps
			assert.NoError(t, e.Do(func() {}))
			synctest.Wait()
			assert.NoError(t, e.Do(func() { assert.NoError(t, d.jobs.Free(j)) }))
		}()
		require.NoError(t, e.Run(t.Context()))
		assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), "it says so once: %s", log.String())
		assert.Contains(t, log.String(), `"tasks":1`)
	})
}

// In the bubble, Wait returns only when Run is blocked for good, so this shows
// that it neither spins nor misses anything that wakes it.
func TestRunSleepsWithoutPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 4)
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		got := make(chan error, 1)
		j.done = func(_ *job, err error) { got <- err }
		require.NoError(t, d.submit(j, 0))
		ended := make(chan error)
		go func() { ended <- e.Run(t.Context()) }()

		synctest.Wait()
		passes := d.passes
		require.NoError(t, e.Do(func() { d.complete(0, nil) }))
		require.NoError(t, <-got)
		synctest.Wait()
		assert.LessOrEqual(t, d.passes-passes, 3)

		passes = d.passes
		for range 5 {
			d.ctl.Wake() // nothing is there
		}
		synctest.Wait()
		assert.LessOrEqual(t, d.passes-passes, 5)
		assert.Positive(t, d.passes-passes)

		passes = d.passes
		time.Sleep(time.Hour)
		assert.Equal(t, passes, d.passes)

		require.NoError(t, e.Do(func() {
			require.NoError(t, d.jobs.Free(j))
			require.NoError(t, d.Stop())
		}))
		require.NoError(t, <-ended)
	})
}

func TestRunReturnsTheDeadlineOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 4)
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		assert.ErrorIs(t, e.Run(ctx), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(begin))
	})
}

func TestRunWaitsForASlowStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 4)
		require.NoError(t, e.Connect(d))
		d.slowStop = true
		require.NoError(t, d.Start())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		cancel()
		synctest.Wait()
		assert.Equal(t, pe.Stopping, d.State())
		require.NoError(t, e.Do(d.ctl.Stopped))
		assert.ErrorIs(t, <-ended, context.Canceled)
		assert.Equal(t, pe.Idle, d.State())
	})
}

// Where clocks stand still, as they do in testing/synctest while anything runs,
// Run sleeps all the same.
func TestRunSleepsWhereTheClockStandsStill(t *testing.T) {
	for _, spin := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			e, d := newEngine(t, pe.Config{Spin: spin}), newDevice(t, 1)
			require.NoError(t, e.Connect(d))
			require.NoError(t, d.Start())
			ended := make(chan error)
			go func() { ended <- e.Run(t.Context()) }()
			synctest.Wait()
			require.NoError(t, e.Do(func() { assert.NoError(t, d.Stop()) }))
			require.NoError(t, <-ended)
			require.NoError(t, e.Close())
		})
	}
}

// A goroutine that waits for its function learns that Run has returned, and has left it.
func TestDone(t *testing.T) {
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	e := pe.New(pe.Config{})
	before := e.Done()
	require.False(t, closed(before))
	var during <-chan struct{}
	require.NoError(t, e.Do(func() { during = e.Done() }))
	require.NoError(t, e.Run(context.Background()))
	require.True(t, closed(before))
	require.True(t, closed(during))

	result, left := make(chan int, 1), make(chan bool)
	go func() {
		_ = e.Do(func() { result <- 1 })
		select {
		case <-result:
			left <- false
		case <-e.Done():
			left <- true
		}
	}()
	require.True(t, <-left)
	require.True(t, closed(e.Done()))

	// Another Run runs it.
	var second <-chan struct{}
	require.NoError(t, e.Do(func() { second = e.Done(); require.False(t, closed(second)) }))
	require.NoError(t, e.Run(context.Background()))
	require.Equal(t, 1, <-result)
	require.True(t, closed(second))

	// The channel is closed also where a callback panics.
	require.NoError(t, e.Do(func() { second = e.Done(); panic("mine") }))
	require.Panics(t, func() { _ = e.Run(context.Background()) })
	require.True(t, closed(second))

	// Whoever has seen it closed may drive the engine.
	require.NoError(t, e.Do(func() {
		done := e.Done()
		go func() {
			<-done
			_, err := e.Progress()
			assert.NoError(t, err)
			left <- true
		}()
	}))
	require.NoError(t, e.Run(context.Background()))
	<-left
	require.NoError(t, e.Close())

	unused := pe.New(pe.Config{})
	before = unused.Done()
	require.NoError(t, unused.Close())
	require.True(t, closed(before))
	require.True(t, closed(unused.Done()))
}
