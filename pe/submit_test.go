package pe_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// userTask is a job with the methods that users of a task see.
type userTask struct {
	*job
	on *device
}

func (r userTask) Submit(...pe.SubmitFlags) error { return r.on.submit(r.job, 0) }
func (r userTask) Free() error                    { return r.on.jobs.Free(r.job) }

// userTask takes a job from a pool that is made with TaskDone and TaskFailed.
func (d *device) userTask(t testing.TB) userTask {
	t.Helper()
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	r := userTask{j, d}
	j.done = func(_ *job, err error) {
		if err == nil {
			pe.TaskDone(r)
		} else {
			pe.TaskFailed(r, err)
		}
	}
	return r
}

func TestThenEachTaskHasItsOwnCallback(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	a, b := d.userTask(t), d.userTask(t)
	var trace []string
	require.NoError(t, pe.SubmitOrFree(a, nil, func(r userTask, err error) {
		require.Equal(t, a, r)
		require.NoError(t, err)
		trace = append(trace, "a")
	}))
	require.NoError(t, pe.SubmitOrFree(b, nil, func(r userTask, err error) {
		require.ErrorIs(t, err, errFlushed)
		trace = append(trace, "b")
	}))
	d.complete(1, errFlushed)
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, []string{"b", "a"}, trace)

	// It stays for the next submission, until it is set anew.
	require.NoError(t, a.Submit())
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, []string{"b", "a", "a"}, trace)
	pe.Then(a, nil)
	require.NoError(t, a.Submit())
	d.complete(0, nil)
	quiesce(t, e)
	require.Len(t, trace, 3)

	require.NoError(t, a.Free())
	require.Nil(t, a.UserData(), "a freed task keeps its callback")
	require.NoError(t, b.Free())
}

func TestThenRefusals(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	a := d.userTask(t)
	called := 0
	require.NoError(t, pe.SubmitOrFree(a, nil, func(userTask, error) { called++ }))
	require.ErrorIs(t, pe.SubmitOrFree(a, nil, func(userTask, error) { called += 100 }), pe.ErrInUse)
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, 1, called, "a refused submission changed the callback")

	// User data of another kind is no callback.
	a.SetUserData("mine")
	require.NoError(t, a.Submit())
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, 1, called)
	require.NoError(t, a.Free())
}

func TestThenAllocatesNothing(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	a := d.userTask(t)
	n := 0
	f := func(userTask, error) { n++ }
	pe.Then(a, f)
	require.Zero(t, testing.AllocsPerRun(100, func() { pe.Then(a, f) }))
	require.NoError(t, a.Free())
	quiesce(t, e)
}

// SubmitOrFree frees what cannot be submitted, and passes on why there is no task.
func TestSubmitOrFree(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	called := 0
	require.NoError(t, pe.SubmitOrFree(d.userTask(t), nil, func(r userTask, err error) {
		require.NoError(t, err)
		require.NoError(t, r.Free())
		called++
	}))
	d.complete(0, nil)
	quiesce(t, e)
	require.Equal(t, 1, called)

	refused := errors.New("refused")
	require.ErrorIs(t, pe.SubmitOrFree(userTask{}, refused, nil), refused)
	require.ErrorIs(t, pe.SubmitOrFree(userTask{}, nil), pe.ErrInvalid)

	// Without a function, the one that the task has, if any, is called.
	a := d.userTask(t)
	require.NoError(t, pe.SubmitOrFree(a, nil))
	d.complete(0, nil)
	quiesce(t, e)
	require.NoError(t, pe.SubmitOrFree(a, nil, nil))
	d.complete(0, nil)
	quiesce(t, e)
	f := func(userTask, error) {}
	require.ErrorIs(t, pe.SubmitOrFree(a, nil, f, f), pe.ErrInvalid)
	require.ErrorIs(t, a.Free(), pe.ErrFreed)
	require.Equal(t, 1, called)

	// One that could not be prepared is freed.
	b := d.userTask(t)
	require.ErrorIs(t, pe.SubmitOrFree(b, refused, f), refused)
	require.ErrorIs(t, b.Free(), pe.ErrFreed)

	late := d.userTask(t)
	require.NoError(t, d.Stop())
	require.ErrorIs(t, pe.SubmitOrFree(late, nil, nil), pe.ErrBadState)
	quiesce(t, e)
	require.Equal(t, pe.Idle, d.State(), "the task is free")
}
