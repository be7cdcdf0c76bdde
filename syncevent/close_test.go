package syncevent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// A program that returns early closes everything, in the order of its deferred calls
// or the engine first: also with waits that go on, and tasks that nobody has freed.
func TestCloseAfterAnEarlyReturn(t *testing.T) {
	for _, engineFirst := range []bool{false, true} {
		dev := openSoft(t)
		event, err := New(dev, Config{Publishers: PublishLocal})
		require.NoError(t, err)
		engine := pe.New(pe.Config{})
		c, err := NewContext(ContextConfig{Engine: engine})
		require.NoError(t, err)
		require.Same(t, engine, c.Engine())
		flushed := 0
		sets, err := c.Pool(2, func(*Task) {}, func(*Task, error) { flushed++ })
		require.NoError(t, err)
		waits, err := c.Pool(2, func(*Task) {}, func(_ *Task, err error) {
			require.ErrorIs(t, err, ErrFlushed)
			flushed++
		})
		require.NoError(t, err)
		require.NoError(t, c.Start())
		var made []interface{ Free() error }
		for i := range 2 {
			set, err := sets.Set(event, 1)
			require.NoError(t, err)
			wait, err := waits.Wait(event, Greater(1000))
			require.NoError(t, err)
			if i == 0 {
				require.NoError(t, set.Submit())
				require.NoError(t, wait.Submit())
			}
			made = append(made, set, wait)
		}

		closers := []func() error{c.Close, engine.Close, event.Close}
		if engineFirst {
			closers[0], closers[1] = closers[1], closers[0]
		}
		for _, close := range closers {
			require.NoError(t, close())
		}
		require.Equal(t, 2, flushed)
		for _, task := range made {
			require.ErrorIs(t, task.Free(), pe.ErrFreed)
		}
	}
}

func TestConfigEngine(t *testing.T) {
	engine := pe.New(pe.Config{})
	require.NoError(t, engine.Close())
	_, err := NewContext(ContextConfig{Engine: engine})
	require.ErrorIs(t, err, pe.ErrClosed)
}
