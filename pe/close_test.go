package pe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// inEveryOrder calls f with all orders of 0 to n-1.
func inEveryOrder(n int, f func(order []int)) {
	var extend func(order []int, used int)
	extend = func(order []int, used int) {
		if len(order) == n {
			f(order)
		}
		for i := range n {
			if used&(1<<i) == 0 {
				extend(append(order[:len(order):len(order)], i), used|1<<i)
			}
		}
	}
	extend(nil, 0)
}

// The program returns early: one context is still Starting, another has tasks in
// flight and tasks that were never submitted. Deferred calls close everything, in
// whatever order.
func TestCloseAfterAnEarlyReturn(t *testing.T) {
	inEveryOrder(4, func(order []int) {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			e, busy := connected(t, 4)
			starting, never := newNamedDevice(t, "starting", 1), newNamedDevice(t, "never", 1)
			starting.slowStart = true
			for _, d := range []*device{starting, never} {
				require.NoError(t, e.Connect(d))
			}
			seen := starting.record()
			require.NoError(t, busy.Start())
			require.NoError(t, starting.Start())
			var failed []error
			var jobs []*job
			for i := range 4 {
				j, err := busy.jobs.Alloc()
				require.NoError(t, err)
				j.done = func(_ *job, err error) { failed = append(failed, err) } // does not free it
				if i < 2 {
					require.NoError(t, busy.submit(j, 0))
				}
				jobs = append(jobs, j)
			}

			closers := []func() error{e.Close, busy.Close, starting.Close, never.Close}
			for _, i := range order {
				require.NoError(t, closers[i]())
			}
			assert.Equal(t, []error{errFlushed, errFlushed}, failed, "tasks in flight come back")
			assert.ElementsMatch(t, jobs, busy.dropped)
			assert.Equal(t, changes{{pe.Idle, pe.Starting}, {pe.Starting, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
			for _, j := range jobs {
				assert.ErrorIs(t, busy.jobs.Free(j), pe.ErrFreed)
				assert.ErrorIs(t, busy.submit(j, 0), pe.ErrFreed)
				assert.ErrorIs(t, busy.ctl.MayChange(&j.Task, "value"), pe.ErrFreed)
			}
			for _, d := range []*device{busy, starting, never} {
				assert.Equal(t, pe.Idle, d.State())
				assert.False(t, d.acquired)
				assert.False(t, d.nested)
				assert.Zero(t, d.Allocated())
				require.NoError(t, d.Close())
				assert.ErrorIs(t, d.Start(), pe.ErrClosed)
			}
			require.NoError(t, e.Close())
		})
	})
}

// What callbacks free while the context is closed is not taken back.
func TestCloseLetsCallbacksFree(t *testing.T) {
	e, d := connected(t, 3)
	require.NoError(t, d.Start())
	kept, err := d.jobs.Alloc()
	require.NoError(t, err)
	flying, err := d.jobs.Alloc()
	require.NoError(t, err)
	queued, err := d.jobs.Alloc()
	require.NoError(t, err)
	flying.done = d.free(t)
	require.NoError(t, d.submit(flying, 0))
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Stopping {
			require.NoError(t, d.jobs.Free(kept))
		}
	})
	require.NoError(t, e.Do(func() { require.NoError(t, d.jobs.Free(queued)) }))
	require.NoError(t, d.Close())
	assert.Empty(t, d.dropped)
	assert.Equal(t, 3, d.jobs.Available())
}

func TestCloseLeavesOtherContextsAlone(t *testing.T) {
	e, d := connected(t, 1)
	other := newNamedDevice(t, "other", 1)
	require.NoError(t, e.Connect(other))
	require.NoError(t, d.Start())
	require.NoError(t, other.Start())
	j, err := other.jobs.Alloc()
	require.NoError(t, err)
	round := 0
	other.budget = 1
	j.done = func(j *job, err error) { // never at rest
		require.NoError(t, err)
		round++
		require.NoError(t, other.submit(j, 0))
		other.complete(0, nil)
	}
	require.NoError(t, other.submit(j, 0))
	other.complete(0, nil)
	_, err = d.jobs.Alloc()
	require.NoError(t, err)
	require.NoError(t, d.Close())
	assert.Len(t, d.dropped, 1)
	assert.Positive(t, round)
	assert.Equal(t, pe.Running, other.State())
	assert.Empty(t, other.dropped)
	assert.Equal(t, 1, e.Active())

	other.Fail(errBroken) // Run returns what ends while nobody calls it
	j.done = other.free(t)
	third := newNamedDevice(t, "third", 1)
	require.NoError(t, e.Connect(third))
	require.NoError(t, third.Start())
	third.Fail(errors.New("closed by hand"))
	require.NoError(t, third.Close())
	err = e.Run(t.Context())
	assert.ErrorIs(t, err, errBroken)
	assert.NotContains(t, err.Error(), "closed by hand")
}

func TestCloseInsideACallback(t *testing.T) {
	e, d := connected(t, 1)
	var errs []error
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			errs = append(errs, d.Close(), e.Close())
			require.NoError(t, d.Stop())
		}
	})
	d.slowStop = true
	require.NoError(t, d.Start())
	quiesce(t, e)
	for _, err := range errs {
		assert.ErrorIs(t, err, pe.ErrReentrant)
	}
	assert.ErrorContains(t, errs[0], `cannot close context "dev": it is Running, and a callback cannot wait until it is Idle`)
	d.ctl.Stopped()
	require.NoError(t, d.Close())
}

// Nor can a method of the backend that runs outside Progress wait.
func TestCloseInsideTheBackend(t *testing.T) {
	e, d := connected(t, 1)
	other := newNamedDevice(t, "other", 1)
	require.NoError(t, e.Connect(other))
	require.NoError(t, other.Start())
	var errs []error
	d.onStart = func() { errs = []error{d.Close(), other.Close(), e.Close()} }
	require.NoError(t, d.Start())
	for _, err := range errs {
		assert.ErrorIs(t, err, pe.ErrReentrant)
	}
	assert.False(t, d.nested)
	require.NoError(t, e.Close())
}

func TestCloseStartsNothingAgain(t *testing.T) {
	e, d := connected(t, 1)
	other := newNamedDevice(t, "other", 1)
	require.NoError(t, e.Connect(other))
	var errs []error
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			errs = append(errs, d.Start(), other.Start())
		}
	})
	other.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			errs = append(errs, other.Start())
		}
	})
	require.NoError(t, d.Start())
	require.NoError(t, d.Close())
	require.Len(t, errs, 2)
	assert.ErrorIs(t, errs[0], pe.ErrClosed)
	require.NoError(t, errs[1], "the other one is not being closed")
	require.NoError(t, e.Close())
	require.Len(t, errs, 3)
	assert.ErrorIs(t, errs[2], pe.ErrDraining)
}

// A callback that closes the context itself gets ahead of Close.
func TestCloseTwice(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			require.NoError(t, d.Close())
		}
	})
	require.NoError(t, d.Start())
	require.NoError(t, d.Close())
	require.NoError(t, e.Close())
}

func TestCloseGivesUpInTime(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			e, d := newEngine(t, pe.Config{Spin: spin}), newDevice(t, 2)
			require.NoError(t, e.Connect(d))
			d.slowStop = true
			require.NoError(t, d.Start())
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			begin := time.Now()
			err = d.Close()
			require.ErrorIs(t, err, pe.ErrTimeout)
			require.ErrorContains(t, err, `context "dev": it is Stopping, 30s after it was stopped: timed out: its backend has not stopped, tasks not freed: 1`)
			require.Equal(t, pe.CloseTimeout, time.Since(begin))
			err = e.Close()
			require.ErrorIs(t, err, pe.ErrTimeout)
			require.Equal(t, 2*pe.CloseTimeout, time.Since(begin))
			require.NoError(t, e.Do(func() {}), "the engine is still open")

			// It stops at last.
			time.AfterFunc(time.Second, func() { assert.NoError(t, e.Do(d.ctl.Stopped)) })
			require.NoError(t, d.Close())
			require.Equal(t, 2*pe.CloseTimeout+time.Second, time.Since(begin))
			require.Equal(t, []*job{j}, d.dropped)
			require.NoError(t, e.Close())
		})
	}
}

// Nor does a context that always has something to do hold Close up for ever.
func TestCloseGivesUpOnABusyContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := connected(t, 1)
		d.slowStop = true
		require.NoError(t, d.Start())
		var again func()
		again = func() {
			time.Sleep(time.Millisecond)
			_ = e.Do(again)
		}
		require.NoError(t, e.Do(again))
		d.Fail(errBroken)
		err := d.Close()
		require.ErrorIs(t, err, pe.ErrTimeout)
		require.ErrorIs(t, err, errBroken)
		require.Regexp(t, "^context \"dev\": broken\n", err.Error(), "the cause comes first")
		require.ErrorIs(t, e.Close(), errBroken)
		d.ctl.Stopped()
		require.NoError(t, d.Close())
		require.NoError(t, e.Close())
	})
}

func TestCloseAfterRunWithTasksHeld(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, e.Run(ctx), pe.ErrTasksHeld)
	require.NoError(t, d.Close())
	require.Equal(t, []*job{j}, d.dropped)
	require.NoError(t, e.Close())
}

func TestCloseCallsWaiters(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	first, second := d.newWaitingUser(), d.newWaitingUser()
	first.tryAlloc()
	second.tryAlloc()
	require.NotNil(t, first.job)
	require.NoError(t, d.Close())
	require.ErrorIs(t, second.err, pe.ErrBadState)
	require.NoError(t, e.Close())
}

func TestCloseAfterAPanic(t *testing.T) {
	e, d := connected(t, 1)
	panics := 1
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Stopping && panics > 0 {
			panics--
			panic("mine")
		}
	})
	require.NoError(t, d.Start())
	require.Panics(t, func() { _ = d.Close() })
	require.NoError(t, d.Close())
	require.NoError(t, e.Close())
}

// A context that Engine.Close has stopped can be used on another engine.
func TestContextOutlivesItsEngine(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	d.Fail(errBroken)
	require.NoError(t, e.Close())
	require.Equal(t, errBroken, d.Err())
	other := newEngine(t, pe.Config{})
	require.NoError(t, other.Connect(d))
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	require.NoError(t, other.Run(t.Context()))
	require.NoError(t, d.Close())
	require.NoError(t, other.Close())
}
