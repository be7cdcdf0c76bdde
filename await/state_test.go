package await_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

func TestStates(t *testing.T) {
	l := petest.NewLab(t, 1)
	l.Slow = true
	e := drive(t, l)
	result := make(chan error)
	go func() { result <- await.State(background, l, pe.Running) }()
	go func() { result <- await.Start(background, l) }()
	require.NoError(t, await.State(background, l, pe.Starting))
	do(t, e, l.Control.Started)
	require.NoError(t, <-result)
	require.NoError(t, <-result)
	require.NoError(t, await.State(background, l, pe.Running))
	require.ErrorIs(t, await.Start(background, l), pe.ErrBadState)
	require.NoError(t, await.Stop(background, l))
	require.NoError(t, await.Stop(background, l))
	require.Equal(t, pe.Idle, l.State())
}

// A context that goes back to Idle will not be Running.
func TestStateNeverReached(t *testing.T) {
	l := petest.NewLab(t, 1)
	l.Slow = true
	e := drive(t, l)
	result := make(chan error)
	go func() { result <- await.Start(background, l) }()
	require.NoError(t, await.State(background, l, pe.Starting))
	do(t, e, func() { l.Fail(errBoom) })
	err := <-result
	require.ErrorIs(t, err, await.ErrStopped)
	require.ErrorIs(t, err, errBoom)

	do(t, e, func() { l.StartErr = errBoom })
	require.ErrorIs(t, await.Start(background, l), errBoom)
}

// An Idle of before the call, which is yet to be reported, is not the one that Stop
// waits for.
func TestStopWaitsForItsOwnIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := petest.NewLab(t, 1)
		e := pe.New(pe.Config{})
		require.NoError(t, e.Connect(l))
		var held *petest.Job
		l.OnStateChange(func(_, _ pe.State) {
			l.OnStateChange(nil)
			require.NoError(t, l.Stop())
			require.NoError(t, l.Start())
			var err error
			held, err = l.Jobs.Alloc()
			require.NoError(t, err)
		})
		require.NoError(t, l.Start())
		result := make(chan error, 1)
		go func() { result <- await.Stop(background, l) }()
		synctest.Wait()
		progress(t, e)
		synctest.Wait()
		require.Equal(t, pe.Stopping, l.State())
		require.Empty(t, result, "a task is still allocated")
		require.NoError(t, held.Free())
		progress(t, e)
		require.NoError(t, <-result)
		require.NoError(t, e.Close())
	})
}

// progress drives the engine until there is nothing to do.
func progress(t testing.TB, e *pe.Engine) {
	t.Helper()
	for n := 1; n > 0; {
		var err error
		n, err = e.Progress()
		require.NoError(t, err)
	}
}

func TestStateGivenUp(t *testing.T) {
	l := petest.NewLab(t, 1)
	drive(t, l)
	ctx, cancel := context.WithTimeout(background, time.Millisecond)
	defer cancel()
	require.ErrorIs(t, await.State(ctx, l, pe.Running), context.DeadlineExceeded)
	require.ErrorIs(t, await.State(background, petest.NewLab(t, 1), pe.Running), pe.ErrNotConnected)
	require.ErrorIs(t, await.State(background, nil, pe.Running), await.ErrInvalid)
	require.ErrorIs(t, await.Start(background, nil), await.ErrInvalid)
}

// Run goes on while every context is Idle.
func TestRun(t *testing.T) {
	l := petest.NewLab(t, 1)
	e := pe.New(pe.Config{})
	require.NoError(t, e.Connect(l))
	ctx, cancel := context.WithCancelCause(background)
	result := make(chan error)
	go func() { result <- await.Run(ctx, e) }()
	for range 3 {
		require.NoError(t, await.Start(background, l))
		require.NoError(t, await.Stop(background, l))
	}
	require.ErrorIs(t, await.Run(background, e), pe.ErrBusy)
	require.NoError(t, await.Start(background, l))
	cancel(errBoom)
	require.ErrorIs(t, <-result, errBoom)
	require.Equal(t, pe.Idle, l.State())
	require.NoError(t, e.Close())
	require.ErrorIs(t, await.Run(background, e), pe.ErrClosed)
	require.ErrorIs(t, await.Run(background, nil), await.ErrInvalid)
}

// A panic in a callback passes through Run, and nothing of Run stays behind.
func TestRunPanics(t *testing.T) {
	e := pe.New(pe.Config{})
	require.NoError(t, e.Do(func() { panic("oops") }))
	require.PanicsWithValue(t, "oops", func() { _ = await.Run(background, e) })
	require.NoError(t, e.Run(background), "a context was left running")
	require.NoError(t, e.Close())
}

func TestFunc(t *testing.T) {
	e := drive(t)
	require.NoError(t, await.Func(background, e, func() error { return nil }))
	require.ErrorIs(t, await.Func(background, e, func() error { return errBoom }), errBoom)
	require.ErrorIs(t, await.Func(background, e, nil), await.ErrInvalid)
	require.ErrorIs(t, await.Func(background, nil, func() error { return nil }), await.ErrInvalid)
	var inside error
	do(t, e, func() { inside = await.Func(background, e, func() error { return nil }) })
	require.ErrorIs(t, inside, pe.ErrReentrant)

	// Once it is begun, its outcome is the outcome.
	ctx, cancel := context.WithCancel(background)
	begun, goOn := make(chan struct{}), make(chan struct{})
	go func() {
		<-begun
		cancel()
		close(goOn)
	}()
	require.Equal(t, errBoom, await.Func(ctx, e, func() error {
		close(begun)
		<-goOn
		return errBoom
	}))
	require.ErrorIs(t, await.Func(ctx, e, func() error { return nil }), context.Canceled)
}
