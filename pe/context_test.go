package pe_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

var errBroken = errors.New("broken")

func TestLifeOfAContext(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	d.slowStart = true
	require.NoError(t, d.Start())
	assert.Equal(t, pe.Starting, d.State())
	assert.Empty(t, *seen, "callbacks run inside Progress only")
	assert.Equal(t, 1, quiesce(t, e))
	assert.Equal(t, changes{{pe.Idle, pe.Starting}}, *seen)

	d.ctl.Started()
	assert.Equal(t, pe.Running, d.State())
	require.NoError(t, d.Stop())
	assert.Equal(t, pe.Idle, d.State(), "nothing is in flight")
	assert.Equal(t, 3, quiesce(t, e))
	assert.Equal(t, changes{
		{pe.Idle, pe.Starting}, {pe.Starting, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle},
	}, *seen)
	assert.Equal(t, []string{"start", "stop", "idle"}, d.trace)

	*seen, d.slowStart = nil, false
	require.NoError(t, d.Start(), "it can be started again")
	require.NoError(t, d.Stop())
	quiesce(t, e)
	assert.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	assert.Nil(t, d.Engine())
	assert.ErrorIs(t, d.Start(), pe.ErrClosed)
	assert.NoError(t, d.Stop())
	assert.ErrorIs(t, e.Connect(d), pe.ErrClosed)
	assert.ErrorIs(t, d.ctl.Require("do it", pe.Running), pe.ErrClosed)
	_, err := d.jobs.Alloc()
	assert.ErrorIs(t, err, pe.ErrClosed)
	_, err = backend.NewPool(d.ctl, "more", 1, jobTask, nil, nil)
	assert.ErrorIs(t, err, pe.ErrClosed)
	require.NoError(t, e.Close())
}

func TestStopWhileStarting(t *testing.T) {
	e, d := connected(t, 1)
	d.slowStart, d.slowStop = true, true
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	assert.Equal(t, pe.Stopping, d.State())
	d.ctl.Started() // too late
	assert.Equal(t, pe.Stopping, d.State())
	d.ctl.Stopped()
	assert.Equal(t, pe.Idle, d.State())
	assert.False(t, d.acquired)
	d.ctl.Stopped()
	d.ctl.Started()
	d.Fail(errBroken)
	assert.Equal(t, pe.Idle, d.State())
	assert.ErrorIs(t, d.Err(), errBroken, "it counts for the run that has just ended")
	assert.Equal(t, 3, quiesce(t, e))
}

func TestStartWithoutEngine(t *testing.T) {
	d := newDevice(t, 1)
	err := d.Start()
	assert.ErrorIs(t, err, pe.ErrNotConnected)
	assert.ErrorContains(t, err, `"dev"`)
	assert.NoError(t, d.Stop())
	d.ctl.Wake()
	assert.NoError(t, d.Close())
}

func TestStartThatFails(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	d.startErr = errBroken
	d.onStart = func() { d.Fail(errBroken) }
	err := d.Start()
	assert.ErrorIs(t, err, errBroken)
	assert.ErrorContains(t, err, `"dev"`)
	assert.Equal(t, pe.Idle, d.State())
	assert.NoError(t, d.Err())
	assert.Zero(t, quiesce(t, e))
	assert.Empty(t, *seen)
	assert.Zero(t, e.Active())
	d.startErr, d.onStart = nil, nil
	require.NoError(t, d.Start())
	assert.Equal(t, 1, e.Active())
}

func TestBackendThatIsReadyInsideStart(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	d.slowStart = true
	d.onStart = func() {
		d.ctl.Started()
		require.NoError(t, d.Stop(), "not started yet")
	}
	require.NoError(t, d.Start())
	assert.Equal(t, pe.Running, d.State())
	quiesce(t, e)
	assert.Equal(t, changes{{pe.Idle, pe.Running}}, *seen)
}

func TestBackendThatFailsInsideStart(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	d.onStart = func() { d.Fail(errBroken) }
	require.NoError(t, d.Start())
	assert.ErrorIs(t, d.Err(), errBroken)
	quiesce(t, e)
	assert.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
	assert.Equal(t, []string{"start", "stop", "idle"}, d.trace)
}

func TestFatalErrorFlushesTasks(t *testing.T) {
	e, d := connected(t, 4)
	seen := d.record()
	require.NoError(t, d.Start())
	var errs []error
	for range 4 {
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		j.done = func(j *job, err error) {
			errs = append(errs, err)
			if errors.Is(err, errBroken) {
				d.Fail(err)
				d.Fail(errFlushed) // the first one counts
				assert.Equal(t, pe.Stopping, d.State())
			}
			require.NoError(t, d.jobs.Free(j))
		}
		require.NoError(t, d.submit(j, 0))
	}
	d.complete(1, errBroken)
	quiesce(t, e)
	assert.Equal(t, []error{errBroken, errFlushed, errFlushed, errFlushed}, errs)
	assert.Equal(t, pe.Idle, d.State())
	assert.ErrorIs(t, d.Err(), errBroken)
	assert.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
	require.NoError(t, d.Start())
	assert.NoError(t, d.Err())
	d.Fail(nil)
	assert.Equal(t, pe.Running, d.State())
}

func TestStopInACallbackDoesNotNestTheBackend(t *testing.T) {
	e, d := connected(t, 8)
	require.NoError(t, d.Start())
	stopped := false
	for range 8 {
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		j.done = func(j *job, _ error) {
			require.NoError(t, d.Stop())
			if !stopped {
				assert.NotContains(t, d.trace, "stop")
			}
			stopped = true
			require.NoError(t, d.jobs.Free(j))
			assert.True(t, d.acquired, "resources go only when the backend has returned")
		}
		require.NoError(t, d.submit(j, 0))
	}
	d.complete(3, nil)
	quiesce(t, e)
	assert.False(t, d.nested)
	assert.Equal(t, []string{"start", "stop", "idle"}, d.trace)
	assert.Equal(t, pe.Idle, d.State())
}

func TestTasksNeverSubmittedKeepTheContextStopping(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	a, err := d.jobs.Alloc()
	require.NoError(t, err)
	b, err := d.jobs.Alloc()
	require.NoError(t, err)
	require.NoError(t, d.Stop())
	quiesce(t, e)
	assert.Equal(t, pe.Stopping, d.State())
	assert.Equal(t, 2, d.Allocated())
	require.NoError(t, d.jobs.Free(a))
	assert.Equal(t, pe.Stopping, d.State())
	require.NoError(t, d.jobs.Free(b))
	assert.Equal(t, pe.Idle, d.State())
}

func TestStateCallbacksAreOrderedAndNeverNested(t *testing.T) {
	e, d := connected(t, 1)
	depth, rounds := 0, 0
	var seen changes
	d.OnStateChange(func(prev, next pe.State) {
		depth++
		defer func() { depth-- }()
		require.Equal(t, 1, depth)
		seen = append(seen, [2]pe.State{prev, next})
		if next == pe.Running {
			require.NoError(t, d.Stop())
		}
		if next == pe.Idle && rounds < 3 {
			rounds++
			require.NoError(t, d.Start(), "it is legal in the callback that reports Idle")
		}
	})
	require.NoError(t, d.Start())
	for range 100 { // a context that restarts itself does not hold Progress up
		n, err := e.Progress()
		require.NoError(t, err)
		require.LessOrEqual(t, n, 4)
	}
	want := changes{}
	for range 4 {
		want = append(want, [2]pe.State{pe.Idle, pe.Running}, [2]pe.State{pe.Running, pe.Stopping}, [2]pe.State{pe.Stopping, pe.Idle})
	}
	assert.Equal(t, want, seen)
}

func TestCloseInsideTheIdleCallback(t *testing.T) {
	e, d := connected(t, 1)
	other := newDevice(t, 1)
	require.NoError(t, e.Connect(other))
	closed := false
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			require.NoError(t, d.Close())
			closed = true
		}
	})
	require.NoError(t, d.Start())
	require.NoError(t, other.Start())
	require.NoError(t, d.Stop())
	quiesce(t, e)
	assert.True(t, closed)
	before := d.passes
	quiesce(t, e)
	assert.Equal(t, before, d.passes)
	assert.Equal(t, 1, e.Active())
}

func TestCloseBeforeTheCallbacks(t *testing.T) {
	e, d := connected(t, 1)
	seen := d.record()
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	require.NoError(t, d.Close())
	assert.Equal(t, 3, quiesce(t, e))
	assert.Len(t, *seen, 3)
}

func TestContextsComeAndGoInsideCallbacks(t *testing.T) {
	e := newEngine(t, pe.Config{})
	const limit = 50
	made, closed := 0, 0
	var spawn func()
	spawn = func() {
		made++
		d := newDevice(t, 1)
		require.NoError(t, e.Connect(d))
		d.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Running:
				j, err := d.jobs.Alloc()
				require.NoError(t, err)
				j.done = func(j *job, err error) {
					require.NoError(t, err)
					for range 2 {
						if made < limit {
							spawn()
						}
					}
					require.NoError(t, d.jobs.Free(j))
					require.NoError(t, d.Stop())
				}
				require.NoError(t, d.submit(j, 0))
				d.complete(0, nil)
			case pe.Idle:
				require.NoError(t, d.Close())
				closed++
			}
		})
		require.NoError(t, d.Start())
	}
	spawn()
	require.NoError(t, e.Run(t.Context()))
	assert.Equal(t, limit, made)
	assert.Equal(t, limit, closed)
	require.NoError(t, e.Close())
}

func TestUserData(t *testing.T) {
	_, d := connected(t, 1)
	assert.Nil(t, d.UserData())
	d.SetUserData(7)
	assert.Equal(t, 7, d.UserData())
	assert.Equal(t, "dev", d.Name())
}

func TestConnectMisuse(t *testing.T) {
	e, d := connected(t, 1)
	assert.ErrorIs(t, e.Connect(d), pe.ErrInUse)
	assert.ErrorIs(t, newEngine(t, pe.Config{}).Connect(d), pe.ErrInUse, "on another engine")
	assert.ErrorIs(t, e.Connect(nil), pe.ErrInvalid)
	var none *device
	assert.ErrorIs(t, e.Connect(none), pe.ErrInvalid)
}

func TestEveryContextGetsItsTurn(t *testing.T) {
	e := newEngine(t, pe.Config{})
	var order []string
	var devices []*device
	for i := range 3 {
		d := newDevice(t, 8)
		d.budget = 1
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		devices = append(devices, d)
		for range 8 {
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			j.done = func(*job, error) { order = append(order, fmt.Sprint(i)) }
			require.NoError(t, d.submit(j, 0))
		}
	}
	quiesce(t, e)
	for _, d := range devices {
		for range 8 {
			d.complete(0, nil)
		}
	}
	for range 4 {
		n, err := e.Progress()
		require.NoError(t, err)
		require.Equal(t, 3, n)
	}
	assert.Equal(t, []string{"0", "1", "2", "0", "1", "2", "0", "1", "2", "0", "1", "2"}, order)
	assert.Equal(t, 3*8-12, e.InFlight())
}
