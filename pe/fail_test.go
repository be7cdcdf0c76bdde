package pe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

func TestFailKeepsTheFirstErrorAndStops(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	require.NoError(t, d.Start())
	d.Fail(nil)
	require.Equal(t, pe.Running, d.State())
	require.NoError(t, d.Err())
	d.Fail(errBroken)
	d.Fail(errors.New("another"))
	require.Equal(t, errBroken, d.Err())
	quiesce(t, e)
	require.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)

	d.slowStart = true
	require.NoError(t, d.Start())
	require.NoError(t, d.Err(), "Start clears it")
	d.Fail(errBroken)
	require.Equal(t, pe.Idle, d.State(), "it stops a context that is Starting")
	require.Equal(t, errBroken, d.Err())
}

func TestFailAfterAStop(t *testing.T) {
	e, d := connected(t, 1)
	d.slowStop = true
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	d.Fail(fmt.Errorf("a task: %w", errFlushed))
	require.NoError(t, d.Err(), "a stop flushes tasks; that is no error")
	d.Fail(errBroken)
	require.Equal(t, errBroken, d.Err())
	require.Equal(t, pe.Stopping, d.State())
	d.ctl.Stopped()
	quiesce(t, e)
	d.Fail(errors.New("another"))
	require.Equal(t, errBroken, d.Err())

	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	d.ctl.Stopped()
	require.Equal(t, pe.Idle, d.State())
	d.Fail(errFlushed)
	require.NoError(t, d.Err())
	d.Fail(errBroken)
	require.Equal(t, errBroken, d.Err())
	quiesce(t, e)

	require.NoError(t, d.Start())
	d.Fail(errFlushed)
	require.Equal(t, errFlushed, d.Err(), "nobody has stopped it")
	require.Equal(t, pe.Stopping, d.State())
}

func TestFailWhileAnotherGoroutineDrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := connected(t, 1)
		require.NoError(t, d.Start())
		ended := make(chan error)
		go func() { ended <- e.Run(t.Context()) }()
		synctest.Wait()
		d.Fail(errBroken)
		require.ErrorIs(t, <-ended, errBroken)
		require.Equal(t, errBroken, d.Err())
	})
}

func TestRunReturnsTheErrorsOfContexts(t *testing.T) {
	e, d := connected(t, 1)
	other, third := newNamedDevice(t, "other", 1), newNamedDevice(t, "third", 1)
	for _, o := range []*device{other, third} {
		require.NoError(t, e.Connect(o))
	}
	errOther := errors.New("other is broken")
	for _, o := range []*device{d, other, third} {
		require.NoError(t, o.Start())
	}
	d.Fail(errBroken) // before Run
	require.NoError(t, e.Do(func() { other.Fail(errOther) }))
	require.NoError(t, e.Do(func() { assert.NoError(t, third.Stop()) }))
	err := e.Run(t.Context())
	require.ErrorIs(t, err, errBroken)
	require.ErrorIs(t, err, errOther)
	require.ErrorContains(t, err, `context "dev": broken`)
	require.ErrorContains(t, err, `context "other": other is broken`)
	require.NotContains(t, err.Error(), "third")
	require.NoError(t, e.Run(t.Context()), "each once")
	require.Equal(t, errBroken, d.Err())
}

func TestRunReturnsErrorsOfTheIdleCallback(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			d.Fail(errBroken)
		}
	})
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	require.ErrorIs(t, e.Run(t.Context()), errBroken)
}

func TestRunReturnsErrorsOfContextsStartedAgain(t *testing.T) {
	e, d := connected(t, 1)
	rounds := 0
	d.OnStateChange(func(_, next pe.State) {
		switch {
		case next == pe.Running:
			d.Fail(fmt.Errorf("round %d", rounds))
		case next == pe.Idle && rounds < 2:
			rounds++
			require.NoError(t, d.Start())
		}
	})
	require.NoError(t, d.Start())
	err := e.Run(t.Context())
	require.EqualError(t, err, "context \"dev\": round 0\ncontext \"dev\": round 1\ncontext \"dev\": round 2")
}

func TestRunReturnsErrorsOfContextsClosed(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			require.NoError(t, d.Close())
		}
	})
	require.NoError(t, d.Start())
	require.NoError(t, e.Do(func() { d.Fail(errBroken) }))
	require.EqualError(t, e.Run(t.Context()), `context "dev": broken`)
}

func TestRunReturnsTheErrorOfAStartThatFailed(t *testing.T) {
	e, d := connected(t, 1)
	d.startErr = errBroken
	d.Fail(d.Start())
	require.ErrorIs(t, e.Run(t.Context()), errBroken)
	require.NoError(t, e.Run(t.Context()))
}

func TestRunJoinsTheCauseWithErrorsOfContexts(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Stopping {
			d.Fail(errBroken)
		}
	})
	require.NoError(t, d.Start())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := e.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, errBroken)
}

func TestRunReturnsTheErrorOfAContextThatTasksHold(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	d.Fail(errBroken)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = e.Run(ctx)
	for _, want := range []error{errBroken, pe.ErrTasksHeld, context.Canceled} {
		require.ErrorIs(t, err, want)
	}
	const held = `pe: context "dev" cannot become Idle: tasks not freed: 1; free every allocated task, including those never submitted`
	require.EqualError(t, err, "context \"dev\": broken\ncontext canceled\n"+held, "the causes come first")
	require.EqualError(t, e.Run(ctx), "context \"dev\": broken\ncontext canceled\n"+held, "each time that tasks keep it")
	require.NoError(t, d.jobs.Free(j))
	require.NoError(t, e.Run(t.Context()))
}

func TestRunLeavesErrorsOfBeforeToProgress(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	d.Fail(errBroken)
	quiesce(t, e)
	require.Equal(t, errBroken, d.Err())
	require.NoError(t, e.Run(t.Context()), "the context ended before Run")

	require.NoError(t, d.Start())
	d.Fail(errBroken)
	require.NoError(t, d.Start())
	require.NoError(t, d.Err())
	quiesce(t, e)
	d.Fail(errBroken)
	require.ErrorIs(t, e.Run(t.Context()), errBroken, "Progress saw the end of an earlier run of the context only")
}

// A context that fails again and again does not fill the memory.
func TestRunKeepsABoundedNumberOfErrors(t *testing.T) {
	e, d := connected(t, 1)
	rounds := 0
	d.OnStateChange(func(_, next pe.State) {
		switch {
		case next == pe.Running:
			d.Fail(fmt.Errorf("round %d", rounds))
		case next == pe.Idle && rounds < 99:
			rounds++
			require.NoError(t, d.Start())
		}
	})
	require.NoError(t, d.Start())
	err := e.Run(t.Context())
	require.ErrorContains(t, err, "round 63")
	require.NotContains(t, err.Error(), "round 64")
	require.ErrorContains(t, err, "and 36 more")
	require.NoError(t, e.Run(t.Context()))
}

// A panic takes Run down, not the errors.
func TestRunReturnsErrorsThatAnEarlierRunHasNot(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			require.NoError(t, d.Close())
			panic("oops")
		}
	})
	require.NoError(t, d.Start())
	d.Fail(errBroken)
	require.Panics(t, func() { _ = e.Run(t.Context()) })
	require.ErrorIs(t, e.Run(t.Context()), errBroken)
}

func TestTasksOfAnotherContext(t *testing.T) {
	_, d := connected(t, 1)
	_, other := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	require.ErrorIs(t, other.ctl.Begin(&j.Task, "submit a job"), pe.ErrInvalid)
	require.ErrorIs(t, other.ctl.MayChange(&j.Task, "value"), pe.ErrInvalid)
	require.NoError(t, d.jobs.Free(j))
}
