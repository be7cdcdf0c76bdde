package pe_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// The context goes on until its last task has been freed, resubmitted ones included.
func TestStopWhenDone(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.StopWhenDone(), "does nothing in Idle")
	require.NoError(t, d.Start())
	quiesce(t, e)
	require.Equal(t, pe.Running, d.State(), "Start forgets it")

	again := true
	f := func(r userTask, err error) {
		require.NoError(t, err)
		if again {
			again = false
			require.NoError(t, r.Submit())
			return
		}
		require.NoError(t, r.Free())
	}
	require.NoError(t, pe.SubmitOrFree(d.userTask(t), nil, f))
	require.NoError(t, d.StopWhenDone())
	require.NoError(t, pe.SubmitOrFree(d.userTask(t), nil, f), "tasks can still be allocated")
	for range 2 {
		d.complete(0, nil)
		quiesce(t, e)
		require.Equal(t, pe.Running, d.State())
	}
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
	require.NoError(t, d.Err())

	// It counts for one run, and at once where there are no tasks.
	require.NoError(t, d.Start())
	a := d.userTask(t)
	require.NoError(t, a.Free())
	quiesce(t, e)
	require.Equal(t, pe.Running, d.State())
	require.NoError(t, d.StopWhenDone())
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
}

// Who waits for a task is not cut off.
func TestStopWhenDoneWaitsForWaiters(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	quiesce(t, e)
	first := d.userTask(t)
	var second *job
	alloc := func() (err error) {
		second, err = d.jobs.Alloc()
		return err
	}
	waiter := pe.NewWaiter(func() { require.NoError(t, alloc()) })
	require.True(t, waiter.Wait(alloc()))
	gone := pe.NewWaiter(func() { require.Fail(t, "it has left") })
	require.True(t, gone.Wait(alloc()))
	require.NoError(t, d.StopWhenDone())
	require.NoError(t, first.Free())
	quiesce(t, e)
	require.Equal(t, pe.Running, d.State())
	require.NoError(t, d.jobs.Free(second))
	gone.Leave()
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
}

// Stop and Fail come before it, and tasks that were not freed are waited for as always.
func TestStopWhenDoneIsOvertaken(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	a := d.userTask(t)
	require.NoError(t, d.StopWhenDone())
	require.NoError(t, d.Stop())
	quiesce(t, e)
	require.Equal(t, pe.Stopping, d.State())
	require.NoError(t, d.StopWhenDone())
	require.NoError(t, a.Free())
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
}

func TestFreeTask(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	a := d.userTask(t)
	require.NoError(t, pe.SubmitOrFree(a, nil, func(r userTask, _ error) { pe.FreeTask(r) }))
	require.NoError(t, d.StopWhenDone())
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
	require.NoError(t, d.Err())
	require.ErrorIs(t, a.Free(), pe.ErrFreed)
}

// The error is kept though the task that brings it is the last one that StopWhenDone
// waits for.
func TestFailContext(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	broken := errors.New("broken")
	a, b := d.userTask(t), d.userTask(t)
	require.Same(t, d.Core, a.Core())
	require.NoError(t, pe.SubmitOrFree(a, nil, pe.FailContext))
	require.NoError(t, b.Free())
	require.NoError(t, d.StopWhenDone())
	d.complete(0, broken)
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
	require.ErrorIs(t, d.Err(), broken)
	require.ErrorIs(t, a.Free(), pe.ErrFreed)

	// Tasks that a stop has cut off are no failure.
	require.NoError(t, d.Start())
	require.NoError(t, pe.SubmitOrFree(d.userTask(t), nil, pe.FailContext))
	require.NoError(t, d.Stop())
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State())
	require.NoError(t, d.Err())
}
