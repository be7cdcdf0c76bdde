package graph_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/pe"
)

var (
	errFlushed = fmt.Errorf("job: %w", pe.ErrFlushed)
	errBoom    = errors.New("boom")
)

// job is a task of a lab.
type job struct {
	pe.Task
	lab *lab
	err error // what it is to end with
}

func (j *job) Submit(...pe.SubmitFlags) error {
	if j.lab.refuse != nil {
		return j.lab.refuse
	}
	if err := j.lab.ctl.Begin(&j.Task, "submit a job"); err != nil {
		return err
	}
	j.lab.posted = append(j.lab.posted, j)
	return nil
}

func (j *job) Free() error {
	if err := j.lab.jobs.Free(j); err != nil {
		return err
	}
	j.err = nil
	return nil
}

// lab is a context whose jobs end on request, or at once.
type lab struct {
	*pe.Core
	ctl    *pe.Control
	jobs   *pe.Pool[job]
	posted []*job
	done   []*job
	auto   bool  // jobs end by themselves
	refuse error // what Submit fails with
}

type labBackend lab

func newLab(t testing.TB, n int) *lab {
	t.Helper()
	l := &lab{}
	l.Core, l.ctl = pe.NewCore("lab", (*labBackend)(l))
	var err error
	l.jobs, err = pe.NewPool(l.ctl, "jobs", n, func(j *job) *pe.Task { return &j.Task }, func(j *job) { j.lab = l }, nil)
	require.NoError(t, err)
	return l
}

// finish ends the i-th of the jobs in flight.
func (l *lab) finish(i int) {
	j := l.posted[i]
	l.posted = slices.Delete(l.posted, i, i+1)
	l.done = append(l.done, j)
	l.ctl.Wake()
}

func (b *labBackend) Start() (bool, error) { return true, nil }

func (b *labBackend) Progress() int {
	n := 0
	for b.auto && len(b.posted) > 0 {
		(*lab)(b).finish(0)
	}
	for len(b.done) > 0 {
		j := b.done[0]
		b.done = slices.Delete(b.done, 0, 1)
		n++
		b.ctl.End(&j.Task)
		if j.err == nil {
			pe.Done(j)
		} else {
			pe.Failed(j, j.err)
		}
	}
	if b.State() == pe.Stopping && b.InFlight() == 0 {
		b.ctl.Stopped()
	}
	return n
}

func (b *labBackend) Arm() bool {
	return len(b.done) == 0 && (!b.auto || len(b.posted) == 0) && (b.State() != pe.Stopping || b.InFlight() > 0)
}

func (b *labBackend) Stop() {
	for len(b.posted) > 0 {
		b.posted[0].err = errFlushed
		(*lab)(b).finish(0)
	}
}

func (b *labBackend) Idle() {}

// bench is an engine with a lab and, once built, a graph on it.
type bench[V any] struct {
	t      testing.TB
	engine *pe.Engine
	lab    *lab
	g      *graph.Graph[V]
	pool   *graph.Pool[V]
	done   []*graph.Instance[V]
	errs   []error // of instances that failed
	of     map[error]*graph.Instance[V]
}

func newBench[V any](t testing.TB, jobs int) *bench[V] {
	t.Helper()
	e := pe.New(pe.Config{})
	x := &bench[V]{t: t, engine: e, lab: newLab(t, jobs), of: map[error]*graph.Instance[V]{}}
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
