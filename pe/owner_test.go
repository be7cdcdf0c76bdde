package pe_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Whether a callback runs is found out at any depth, and allocates nothing.
func TestInsideACallback(t *testing.T) {
	e := pe.New(pe.Config{})
	var deep func(n int) error
	deep = func(n int) error {
		if n == 0 {
			return e.Friends(friend.Package{}).MayBlock("wait")
		}
		err := deep(n - 1)
		return err
	}
	require.NoError(t, deep(100))
	idle, done := &device{}, false
	idle.Core, idle.ctl = backend.New("idle", (*deviceBackend)(idle))
	require.NoError(t, e.Connect(idle))
	require.NoError(t, e.Do(func() {
		for _, n := range []int{0, 1, 60, 64, 200} {
			assert.ErrorIs(t, deep(n), pe.ErrReentrant, "%d calls deep", n)
		}
		assert.Zero(t, testing.AllocsPerRun(10, func() { _ = idle.ctl.Owned("do it") }))
		done = true
	}))
	_, err := e.Progress()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, e.Close())
}

// A callback of one engine is a foreign goroutine to another engine that is being driven,
// even though both goroutines are inside a pass.
func TestCallbackOfAnotherEngine(t *testing.T) {
	driven, other := pe.New(pe.Config{}), pe.New(pe.Config{})
	d, idle := newDevice(t, 1), newNamedDevice(t, "idle", 1)
	require.NoError(t, driven.Connect(d))
	require.NoError(t, driven.Connect(idle))
	require.NoError(t, d.Start())

	inside, leave := make(chan struct{}), make(chan struct{})
	require.NoError(t, driven.Do(func() {
		close(inside)
		<-leave
	}))
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- driven.Run(ctx) }()
	<-inside

	failure := errors.New("link lost")
	done := false
	require.NoError(t, other.Do(func() {
		for op, err := range map[string]error{
			"Core.Start":     idle.Start(),
			"Core.Stop":      d.Stop(),
			"StopWhenDone":   d.StopWhenDone(),
			"Core.Close":     d.Close(),
			"Control.Owned":  d.ctl.Owned("do it"),
			"Engine.Connect": driven.Connect(newNamedDevice(t, "new", 1)),
			"Engine.Run":     driven.Run(t.Context()),
			"Engine.Close":   driven.Close(),
		} {
			assert.ErrorIs(t, err, pe.ErrBusy, op)
			assert.NotErrorIs(t, err, pe.ErrReentrant, op)
		}
		assert.NoError(t, driven.Friends(friend.Package{}).MayBlock("wait"), "it would wait for another goroutine")
		assert.ErrorIs(t, other.Friends(friend.Package{}).MayBlock("wait"), pe.ErrReentrant)
		d.Fail(failure)
		assert.Equal(t, pe.Running, d.State(), "Fail has stopped the context in place")
		done = true
	}))
	_, err := other.Progress()
	require.NoError(t, err)
	require.True(t, done)

	if t.Failed() {
		cancel() // contexts that should not have been started may run
	}
	close(leave)
	assert.ErrorIs(t, <-ended, failure)
	assert.Equal(t, pe.Idle, d.State())
	require.NoError(t, other.Close())
	require.NoError(t, driven.Close())
}
