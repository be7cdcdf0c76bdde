package syncevent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

func TestTasksSmoke(t *testing.T) {
	engine, err := pe.New(pe.Config{})
	require.NoError(t, err)
	e, err := New(Config{})
	require.NoError(t, err)
	c, err := NewContext(ContextConfig{})
	require.NoError(t, err)
	var told []string
	adds, err := c.AddPool(1, func(a *AddTask) {
		told = append(told, "added")
		if a.Old() < 3 {
			require.NoError(t, a.Submit())
			return
		}
		require.NoError(t, a.Free())
	}, func(*AddTask, error) { t.Error("add failed") })
	require.NoError(t, err)
	waits, err := c.WaitPool(2, func(w *WaitTask) {
		told = append(told, "waited")
		assert.GreaterOrEqual(t, w.Value(), uint64(2))
		require.NoError(t, w.Free())
		require.NoError(t, c.Stop())
	}, func(w *WaitTask, err error) {
		told = append(told, "flushed")
		assert.ErrorIs(t, err, ErrFlushed)
		require.NoError(t, w.Free())
	})
	require.NoError(t, err)
	require.NoError(t, engine.Connect(c))
	c.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		for _, v := range []uint64{2, 1000} {
			w, err := waits.Greater(e, v, all)
			require.NoError(t, err)
			require.NoError(t, w.Submit())
		}
		a, err := adds.Alloc(e, 1)
		require.NoError(t, err)
		require.NoError(t, a.Submit())
	})
	require.NoError(t, c.Start())
	require.NoError(t, engine.Run(context.Background()))
	assert.Contains(t, told, "waited")
	assert.Contains(t, told, "flushed")
	require.NoError(t, engine.Close())
	require.NoError(t, e.Close())
}
