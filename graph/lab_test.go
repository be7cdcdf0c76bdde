package graph_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

var errBoom = errors.New("boom")

// bench is an engine with a lab and, once built, a graph on it.
type bench[V any] struct {
	t      testing.TB
	engine *pe.Engine
	lab    *petest.Lab
	g      *graph.Graph[V]
	pool   *graph.Pool[V]
	done   []*graph.Instance[V]
	errs   []error // of instances that failed
	of     map[error]*graph.Instance[V]
}

func newBench[V any](t testing.TB, jobs int) *bench[V] {
	t.Helper()
	e := pe.New(pe.Config{})
	x := &bench[V]{t: t, engine: e, lab: petest.NewLab(t, jobs), of: map[error]*graph.Instance[V]{}}
	require.NoError(t, e.Connect(x.lab))
	require.NoError(t, x.lab.Start())
	return x
}

// build builds the graph and starts it.
func (x *bench[V]) build(b *graph.Builder[V], instances int) {
	x.t.Helper()
	var err error
	x.g, err = b.Build()
	require.NoError(x.t, err)
	x.pool, err = x.g.Pool(instances,
		func(i *graph.Instance[V]) { x.done = append(x.done, i) },
		func(i *graph.Instance[V], err error) {
			x.done = append(x.done, i)
			x.errs = append(x.errs, err)
			x.of[err] = i
		})
	require.NoError(x.t, err)
	require.NoError(x.t, x.engine.Connect(x.g))
	require.NoError(x.t, x.g.Start())
}

func (x *bench[V]) submit(v V) *graph.Instance[V] {
	x.t.Helper()
	i, err := x.pool.Alloc(v)
	require.NoError(x.t, err)
	require.NoError(x.t, i.Submit())
	return i
}

// quiesce drives the engine until there is nothing to do.
func (x *bench[V]) quiesce() {
	x.t.Helper()
	for range 100_000 {
		n, err := x.engine.Progress()
		require.NoError(x.t, err)
		if n == 0 {
			return
		}
	}
	require.Fail(x.t, "the engine finds no end")
}

// close stops everything, and sees that nothing is left.
func (x *bench[V]) close() {
	x.t.Helper()
	require.NoError(x.t, x.g.Stop())
	require.NoError(x.t, x.lab.Stop())
	x.quiesce()
	for _, i := range x.done {
		require.NoError(x.t, i.Free())
	}
	x.quiesce()
	require.Equal(x.t, pe.Idle, x.g.State())
	require.Equal(x.t, pe.Idle, x.lab.State())
	require.NoError(x.t, x.engine.Close())
}
