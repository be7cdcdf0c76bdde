package pe_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

func TestStateNames(t *testing.T) {
	names := map[pe.State]string{
		pe.Idle: "Idle", pe.Starting: "Starting", pe.Running: "Running", pe.Stopping: "Stopping",
		-1: "State(-1)", 9: "State(9)",
	}
	for s, want := range names {
		assert.Equal(t, want, s.String())
	}
}

func TestStateErrorSaysWhatIsLegal(t *testing.T) {
	err := &pe.StateError{Op: "submit", Object: `context "a"`, State: pe.Stopping, Legal: []pe.State{pe.Running}}
	assert.EqualError(t, err, `pe: cannot submit: context "a" is Stopping, and the call is legal only in Running`)
	err.Legal = []pe.State{pe.Idle, pe.Starting, pe.Running}
	assert.EqualError(t, err, `pe: cannot submit: context "a" is Stopping, and the call is legal only in Idle, Starting and Running`)
	assert.ErrorIs(t, err, pe.ErrBadState)
	assert.NotErrorIs(t, err, pe.ErrClosed)
}

// inState makes a device that is in a state, with a task out of its pool where
// there can be one.
func inState(t *testing.T, s pe.State) (*pe.Engine, *device, *job) {
	t.Helper()
	e, d := connected(t, 2)
	d.slowStart = s == pe.Starting
	if s == pe.Idle {
		return e, d, nil
	}
	require.NoError(t, d.Start())
	var j *job
	if s != pe.Starting {
		var err error
		j, err = d.jobs.Alloc()
		require.NoError(t, err)
	}
	if s == pe.Stopping {
		require.NoError(t, d.Stop())
	}
	require.Equal(t, s, d.State())
	return e, d, j
}

func TestLegality(t *testing.T) {
	states := []pe.State{pe.Idle, pe.Starting, pe.Running, pe.Stopping}
	calls := []struct {
		name  string
		legal []pe.State
		other error // for a call that fails for another reason than the state
		call  func(e *pe.Engine, d *device, j *job) error
	}{
		{"start", []pe.State{pe.Idle}, pe.ErrBadState, func(_ *pe.Engine, d *device, _ *job) error { return d.Start() }},
		{"stop", states, nil, func(_ *pe.Engine, d *device, _ *job) error { return d.Stop() }},
		{"close", states, nil, func(_ *pe.Engine, d *device, _ *job) error { return d.Close() }},
		{"close in a callback", []pe.State{pe.Idle}, pe.ErrReentrant, func(e *pe.Engine, d *device, _ *job) (err error) {
			if e := e.Do(func() { err = d.Close() }); e != nil {
				return e
			}
			if _, e := e.Progress(); e != nil {
				return e
			}
			return err
		}},
		{"make a pool", []pe.State{pe.Idle}, pe.ErrBadState, func(_ *pe.Engine, d *device, _ *job) error {
			_, err := backend.NewPool(d.ctl, "more", 1, jobTask, nil, nil)
			return err
		}},
		{"allocate", []pe.State{pe.Running}, pe.ErrBadState, func(_ *pe.Engine, d *device, _ *job) error {
			_, err := d.jobs.Alloc()
			return err
		}},
		{"close the engine", states, nil, func(e *pe.Engine, _ *device, _ *job) error { return e.Close() }},
		{"require", []pe.State{pe.Starting, pe.Stopping}, pe.ErrBadState, func(_ *pe.Engine, d *device, _ *job) error {
			return d.ctl.Require("do this", pe.Starting, pe.Stopping)
		}},
	}
	for _, c := range calls {
		for _, s := range states {
			t.Run(c.name+" in "+s.String(), func(t *testing.T) {
				e, d, j := inState(t, s)
				checkLegal(t, c.call(e, d, j), s, c.legal, c.other)
			})
		}
	}
	// Only these two states have tasks.
	for _, s := range []pe.State{pe.Running, pe.Stopping} {
		t.Run("submit in "+s.String(), func(t *testing.T) {
			_, d, j := inState(t, s)
			checkLegal(t, d.submit(j, 0), s, []pe.State{pe.Running}, pe.ErrBadState)
			assert.Equal(t, s == pe.Running, j.InFlight())
		})
		t.Run("free in "+s.String(), func(t *testing.T) {
			_, d, j := inState(t, s)
			require.NoError(t, d.jobs.Free(j))
			assert.Equal(t, 2, d.jobs.Available())
		})
	}
	for _, s := range states {
		t.Run("connect in "+s.String(), func(t *testing.T) {
			_, d, _ := inState(t, s)
			other := newEngine(t, pe.Config{})
			err := other.Connect(d)
			if s == pe.Idle {
				assert.ErrorIs(t, err, pe.ErrInUse, "it is on an engine")
			} else {
				assert.ErrorIs(t, err, pe.ErrBadState)
			}
		})
	}
}

func checkLegal(t *testing.T, err error, s pe.State, legal []pe.State, other error) {
	t.Helper()
	for _, l := range legal {
		if l == s {
			require.NoError(t, err)
			return
		}
	}
	require.ErrorIs(t, err, other)
	if other == pe.ErrBadState {
		var se *pe.StateError
		require.True(t, errors.As(err, &se))
		assert.Equal(t, s, se.State)
		assert.Equal(t, legal, se.Legal)
		assert.Equal(t, `context "dev"`, se.Object)
	}
}

func TestUnsupportedErrorNamesThePlatform(t *testing.T) {
	err := &pe.UnsupportedError{Feature: "this", Platform: "plan9", Instead: "do that"}
	assert.EqualError(t, err, "pe: this is not supported on plan9: do that")
	assert.ErrorIs(t, err, pe.ErrNotSupported)
	assert.NotErrorIs(t, err, pe.ErrInvalid)
}
