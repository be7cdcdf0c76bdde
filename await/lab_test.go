package await_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

// drive has an engine driven until the test ends.
func drive(t testing.TB, contexts ...pe.Context) *pe.Engine {
	t.Helper()
	e := pe.New(pe.Config{})
	for _, c := range contexts {
		require.NoError(t, e.Connect(c))
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	spawn(t, func() { ended <- await.Run(ctx, e) })
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, e.Close())
	})
	return e
}

// do runs f on the engine's goroutine.
func do(t testing.TB, e *pe.Engine, f func()) {
	t.Helper()
	require.NoError(t, await.Func(context.Background(), e, func() error {
		f()
		return nil
	}))
}

// running makes a lab that runs.
func running(t testing.TB, n int) (*pe.Engine, *petest.Lab) {
	t.Helper()
	l := petest.NewLab(t, n)
	e := drive(t, l)
	require.NoError(t, await.Start(context.Background(), l))
	return e, l
}
