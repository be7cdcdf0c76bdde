package pe_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// A large pool makes its tasks when they are needed, each once, and keeps them: a program that
// has had them all allocates nothing any more. Close takes back those of every chunk.
func TestLargePool(t *testing.T) {
	const n = 5000
	l := &loopback{}
	l.Core, l.ctl = backend.New("loopback", (*loopbackBackend)(l))
	inits, drops := map[*echo]int{}, map[*echo]int{}
	pool := must(backend.NewPool(l.ctl, "echoes", n, func(e *echo) *pe.Task { return &e.Task },
		func(e *echo) { inits[e]++ }, func(e *echo) { drops[e]++ }))
	e := newEngine(t, pe.Config{})
	require.NoError(t, e.Connect(l))
	require.NoError(t, l.Start())
	quiesce(t, e)
	require.Less(t, len(inits), n/2)
	require.Equal(t, []int{n, n}, []int{pool.Cap(), pool.Available()})
	first := must(pool.Alloc())
	require.NoError(t, pool.Free(first))
	require.Same(t, first, must(pool.Alloc()), "the one used last")
	tasks := []*echo{first}
	for len(tasks) < n {
		require.Equal(t, n-len(tasks), pool.Available())
		tasks = append(tasks, must(pool.Alloc()))
	}
	_, err := pool.Alloc()
	require.ErrorIs(t, err, pe.ErrExhausted)
	require.ErrorContains(t, err, "all 5000 tasks")
	require.Equal(t, n, len(inits))
	for _, task := range tasks {
		require.Equal(t, 1, inits[task])
	}
	free := func() {
		for _, task := range tasks {
			assert.NoError(t, pool.Free(task))
		}
	}
	free()
	require.Equal(t, n, pool.Available())
	require.Zero(t, testing.AllocsPerRun(5, func() {
		for i := range tasks {
			tasks[i] = must(pool.Alloc())
		}
		free()
	}))
	for i := range tasks {
		tasks[i] = must(pool.Alloc())
	}
	require.NoError(t, pool.Free(tasks[n/2]))
	require.NoError(t, l.Close())
	require.Equal(t, n-1, len(drops))
	require.Zero(t, drops[tasks[n/2]])
	require.Equal(t, n, pool.Available())
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}
