package pe_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// Whether a callback runs is found out at any depth, and allocates nothing.
func TestInsideACallback(t *testing.T) {
	e := pe.New(pe.Config{})
	var deep func(n int) error
	deep = func(n int) error {
		if n == 0 {
			return e.MayBlock("wait")
		}
		err := deep(n - 1)
		return err
	}
	require.NoError(t, deep(100))
	idle, done := &device{}, false
	idle.Core, idle.ctl = pe.NewCore("idle", (*deviceBackend)(idle))
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
