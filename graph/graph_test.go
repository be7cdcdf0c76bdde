package graph_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

// trace is a value that notes what has run.
type trace struct{ list []string }

func (r *trace) note(s string) { r.list = append(r.list, s) }

func noting(name string) func(*trace) error {
	return func(r *trace) error {
		r.note(name)
		return nil
	}
}

func (x *bench[V]) alloc(V) (*petest.Job, error) { return x.lab.Jobs.Alloc() }

func TestTasksAndFunctions(t *testing.T) {
	x := newBench[*trace](t, 2)
	b := graph.NewBuilder[*trace]("g")
	collect := func(name string) func(*trace, *petest.Job) error {
		return func(r *trace, j *petest.Job) error {
			require.False(t, j.InFlight())
			return noting(name)(r)
		}
	}
	first := graph.Task(b, "first", x.alloc, collect("first"))
	second := graph.Task(b, "second", x.alloc, collect("second"))
	join := b.Func("join", noting("join"))
	last := graph.Task(b, "last", x.alloc, nil)
	b.Edge(first, join)
	b.Edge(second, join)
	b.Edge(join, last)
	x.build(b, 1)

	r := &trace{}
	i := x.submit(r)
	require.ErrorIs(t, i.Submit(), pe.ErrInUse)
	require.ErrorIs(t, i.Free(), pe.ErrInUse)
	require.ErrorIs(t, i.SetValue(nil), pe.ErrInUse)
	x.quiesce()
	require.Len(t, x.lab.Posted, 2, "both are in flight at the same time")
	x.lab.Finish(1)
	x.quiesce()
	require.Equal(t, []string{"second"}, r.list)
	x.lab.Finish(0)
	x.quiesce()
	require.Equal(t, []string{"second", "first", "join"}, r.list)
	require.Len(t, x.lab.Posted, 1)
	require.Empty(t, x.done)
	x.lab.Finish(0)
	x.quiesce()
	require.Equal(t, []*graph.Instance[*trace]{i}, x.done)
	require.Zero(t, x.lab.Allocated())

	// It runs again.
	x.lab.Auto = true
	again := &trace{}
	require.NoError(t, i.SetValue(again))
	require.NoError(t, i.Submit())
	x.quiesce()
	require.Equal(t, []string{"first", "second", "join"}, again.list)
	require.Same(t, again, i.Value())
	require.Empty(t, x.errs)
	x.done = x.done[:1]
	x.close()
	require.Nil(t, i.Value())
	require.ErrorIs(t, i.Free(), pe.ErrFreed)
	require.ErrorIs(t, i.SetValue(again), pe.ErrFreed)
}

func TestErrorsStopWhatDependsOnThem(t *testing.T) {
	x := newBench[*trace](t, 2)
	x.lab.Auto = true
	b := graph.NewBuilder[*trace]("g")
	bad := graph.Task(b, "bad", func(*trace) (*petest.Job, error) {
		j, err := x.lab.Jobs.Alloc()
		j.Err = errBoom
		return j, err
	}, func(*trace, *petest.Job) error { panic("collected a failure") })
	after, far := b.Func("after", noting("after")), b.Func("far", noting("far"))
	good, better := b.Func("good", noting("good")), b.Func("better", noting("better"))
	b.Chain(bad, after, far)
	b.Chain(good, better)
	b.Edge(better, far)
	x.build(b, 1)
	r := &trace{}
	x.submit(r)
	x.quiesce()
	require.Equal(t, []string{"good", "better"}, r.list)
	require.Len(t, x.errs, 1)
	require.ErrorIs(t, x.errs[0], errBoom)
	require.NotErrorIs(t, x.errs[0], graph.ErrFlushed)
	var run *graph.RunError
	require.ErrorAs(t, x.errs[0], &run)
	require.Equal(t, []string{"after", "far"}, run.NotRun)
	var node *graph.NodeError
	require.ErrorAs(t, x.errs[0], &node)
	require.Equal(t, "bad", node.Node)
	require.EqualError(t, x.errs[0], `graph: run of "g": node "bad": boom; not run: after, far`)
	x.close()
}

func TestNodesFail(t *testing.T) {
	x := newBench[*trace](t, 1)
	x.lab.Auto = true
	other := newBench[*trace](t, 2) // one is lost in each run
	none := func(*trace) (*petest.Job, error) { return nil, nil }
	fails := func(*trace) (*petest.Job, error) { return nil, errBoom }
	b := graph.NewBuilder[*trace]("g")
	b.Func("func", func(*trace) error { return errBoom })
	graph.Task(b, "alloc", fails, nil)
	graph.Task(b, "none", none, nil)
	graph.Task(b, "engine", other.alloc, nil)
	graph.Task(b, "collect", x.alloc, func(*trace, *petest.Job) error { return errBoom })
	graph.Task(b, "freed", x.alloc, func(_ *trace, j *petest.Job) error { return j.Free() })
	x.build(b, 1)
	x.submit(&trace{})
	x.quiesce()
	require.Len(t, x.errs, 1)
	var run *graph.RunError
	require.ErrorAs(t, x.errs[0], &run)
	want := map[string]error{
		"func": errBoom, "alloc": errBoom, "none": graph.ErrInvalid, "engine": graph.ErrEngine,
		"collect": errBoom, "freed": pe.ErrFreed,
	}
	for _, n := range run.Failed {
		require.ErrorIs(t, n, want[n.Node], n.Node)
		delete(want, n.Node)
	}
	require.Empty(t, want)
	require.Zero(t, x.lab.Allocated())

	// Submission that fails frees the task.
	x.lab.Refuse = errBoom
	x.errs = nil
	require.NoError(t, x.done[0].Submit())
	x.quiesce()
	require.Len(t, x.errs, 1)
	require.Zero(t, x.lab.Allocated())
	x.done = x.done[:1]
	x.close()
}

// A collect that submits the task again keeps it, and has failed.
func TestCollectSubmitsAgain(t *testing.T) {
	x := newBench[int](t, 1)
	x.lab.Auto = true
	var kept *petest.Job
	times := 0
	b := graph.NewBuilder[int]("g")
	graph.Task(b, "again", x.alloc, func(_ int, j *petest.Job) error {
		times++
		kept = j
		return j.Submit()
	})
	x.build(b, 1)
	x.submit(0)
	x.quiesce()
	require.Len(t, x.errs, 1)
	require.ErrorIs(t, x.errs[0], pe.ErrInUse)
	require.Equal(t, 1, times)
	require.NoError(t, kept.Free())
	x.close()
}

func TestPoolRefusals(t *testing.T) {
	x := newBench[int](t, 1)
	b := graph.NewBuilder[int]("g")
	b.Func("a", nop)
	x.build(b, 1)
	done, failed := func(*graph.Instance[int]) {}, func(*graph.Instance[int], error) {}
	_, err := x.g.Pool(1, nil, failed)
	require.ErrorIs(t, err, graph.ErrInvalid)
	_, err = x.g.Pool(1, done, nil)
	require.ErrorIs(t, err, graph.ErrInvalid)
	_, err = x.g.Pool(1, done, failed)
	require.ErrorIs(t, err, pe.ErrBadState)
	require.Equal(t, 1, x.pool.Cap())
	x.submit(1)
	require.Zero(t, x.pool.Available())
	_, err = x.pool.Alloc(1)
	require.ErrorIs(t, err, pe.ErrExhausted)
	x.quiesce()
	x.close()
}

// Nodes wait for tasks: of this graph, and of others who use the pool.
func TestExhaustedPool(t *testing.T) {
	x := newBench[*trace](t, 1)
	mine, err := x.lab.Jobs.Alloc()
	require.NoError(t, err)
	x.lab.Auto = true
	b := graph.NewBuilder[*trace]("g")
	for n := range 3 {
		name := fmt.Sprint(n)
		graph.Task(b, name, x.alloc, func(r *trace, _ *petest.Job) error { return noting(name)(r) })
	}
	x.build(b, 2)
	one, two := &trace{}, &trace{}
	x.submit(one)
	x.submit(two)
	x.quiesce()
	require.Empty(t, one.list)
	require.NoError(t, mine.Free())
	x.quiesce()
	require.Equal(t, []string{"0", "1", "2"}, one.list)
	require.Equal(t, []string{"0", "1", "2"}, two.list)
	require.Empty(t, x.errs)
	x.close()
}

func TestStop(t *testing.T) {
	x := newBench[*trace](t, 2)
	b := graph.NewBuilder[*trace]("g")
	head := b.Func("head", noting("head"))
	one, two := graph.Task(b, "one", x.alloc, nil), graph.Task(b, "two", x.alloc, nil)
	three, tail := graph.Task(b, "three", x.alloc, nil), b.Func("tail", noting("tail"))
	b.Edge(head, one)
	b.Edge(head, two)
	b.Edge(head, three)
	b.Edge(one, tail)
	x.build(b, 2)
	r := &trace{}
	x.submit(r)
	x.quiesce()
	require.Len(t, x.lab.Posted, 2)
	x.submit(&trace{}) // not begun
	require.NoError(t, x.g.Stop())
	x.quiesce()
	require.Equal(t, pe.Stopping, x.g.State())
	require.Len(t, x.done, 1, "the one that was not begun")
	require.EqualError(t, x.errs[0], `graph: run of "g": not run: head, one, two, three, tail (flushed: the graph was stopped)`)
	x.lab.Finish(0)
	x.lab.Finish(0)
	x.quiesce()
	require.Len(t, x.errs, 2)
	require.ErrorIs(t, x.errs[1], graph.ErrFlushed)
	var run *graph.RunError
	require.ErrorAs(t, x.errs[1], &run)
	require.Equal(t, []string{"three", "tail"}, run.NotRun)
	require.Empty(t, run.Failed)
	for _, i := range x.done {
		require.NoError(t, i.Free())
	}
	x.quiesce()
	require.Equal(t, pe.Idle, x.g.State())
	require.Equal(t, []string{"head"}, r.list)

	// Started again, nothing of before is left.
	x.done, x.errs, x.lab.Auto = nil, nil, true
	require.NoError(t, x.g.Start())
	r.list = nil
	x.submit(r)
	x.quiesce()
	require.Empty(t, x.errs)
	require.Equal(t, []string{"head", "tail"}, r.list)
	x.close()
}

// An instance of which all nodes are in flight when the graph is stopped succeeds.
func TestStopTooLateToMatter(t *testing.T) {
	x := newBench[*trace](t, 1)
	b := graph.NewBuilder[*trace]("g")
	graph.Task(b, "only", x.alloc, nil)
	x.build(b, 1)
	x.submit(&trace{})
	x.quiesce()
	require.NoError(t, x.g.Stop())
	x.lab.Finish(0)
	x.quiesce()
	require.Len(t, x.done, 1)
	require.Empty(t, x.errs)
	x.close()
}

// Every function may stop the graph it runs in.
func TestStopFromInside(t *testing.T) {
	stop := func(x *bench[*trace]) error { return x.g.Stop() }
	for name, add := range map[string]func(x *bench[*trace], b *graph.Builder[*trace]) *graph.Node{
		"func": func(x *bench[*trace], b *graph.Builder[*trace]) *graph.Node {
			return b.Func("it", func(*trace) error { return stop(x) })
		},
		"alloc, then stop": func(x *bench[*trace], b *graph.Builder[*trace]) *graph.Node {
			return graph.Task(b, "it", func(r *trace) (*petest.Job, error) {
				j, err := x.alloc(r)
				return j, errors.Join(err, stop(x))
			}, nil)
		},
		"stop, then alloc": func(x *bench[*trace], b *graph.Builder[*trace]) *graph.Node {
			return graph.Task(b, "it", func(r *trace) (*petest.Job, error) {
				require.NoError(x.t, stop(x))
				return x.alloc(r)
			}, nil)
		},
		"collect": func(x *bench[*trace], b *graph.Builder[*trace]) *graph.Node {
			return graph.Task(b, "it", x.alloc, func(*trace, *petest.Job) error { return stop(x) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBench[*trace](t, 1)
			x.lab.Auto = true
			b := graph.NewBuilder[*trace]("g")
			it := add(x, b)
			b.Edge(it, b.Func("next", noting("next")))
			x.build(b, 2)
			r := &trace{}
			x.submit(r)
			x.submit(r)
			x.quiesce()
			require.Len(t, x.errs, 2)
			require.ErrorIs(t, errors.Join(x.errs...), graph.ErrFlushed)
			require.Empty(t, r.list)
			x.close()
		})
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

func TestPanics(t *testing.T) {
	x := newBench[string](t, 1)
	x.lab.Auto = true
	oops := func(v, where string) {
		if v == where {
			panic(where)
		}
	}
	b := graph.NewBuilder[string]("g")
	f := b.Func("func", func(v string) error { oops(v, "func"); return nil })
	task := graph.Task(b, "task",
		func(v string) (*petest.Job, error) { oops(v, "alloc"); return x.lab.Jobs.Alloc() },
		func(v string, _ *petest.Job) error { oops(v, "collect"); return nil })
	b.Chain(f, task, b.Func("end", func(string) error { return nil }))
	x.build(b, 1)
	i := x.submit("")
	x.quiesce()
	for n, where := range []string{"func", "alloc", "collect"} {
		require.NoError(t, i.SetValue(where))
		require.NoError(t, i.Submit())
		require.PanicsWithValue(t, where, func() {
			for range 100 {
				_, _ = x.engine.Progress()
			}
		})
		x.quiesce()
		require.Len(t, x.errs, n+1)
		require.ErrorIs(t, x.errs[n], graph.ErrPanicked)
		require.Zero(t, x.lab.Allocated())
	}
	x.done = x.done[:1]
	x.close()
}

// An instance of one graph is a node of another.
func TestNested(t *testing.T) {
	x := newBench[*trace](t, 1)
	x.lab.Auto = true
	inner := graph.NewBuilder[*trace]("inner")
	inner.Chain(inner.Func("a", noting("a")), graph.Task(inner, "b", x.alloc, nil), inner.Func("c", noting("c")))
	in, err := inner.Build()
	require.NoError(t, err)
	instances, err := in.Pool(1, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	require.NoError(t, x.engine.Connect(in))
	require.NoError(t, in.Start())
	outer := graph.NewBuilder[*trace]("outer")
	outer.Chain(graph.Task(outer, "inner", instances.Alloc, nil), outer.Func("d", noting("d")))
	x.build(outer, 1)
	r := &trace{}
	x.submit(r)
	x.quiesce()
	require.Empty(t, x.errs)
	require.Equal(t, []string{"a", "c", "d"}, r.list)
	require.NoError(t, in.Stop())
	x.close()
	require.Equal(t, pe.Idle, in.State())
}

func TestRunAllocatesNothing(t *testing.T) {
	x := newBench[int](t, 2)
	x.lab.Auto = true
	b := graph.NewBuilder[int]("g")
	head := b.Func("head", nop)
	tail := b.Func("tail", nop)
	for n := range 8 { // more than there are tasks
		it := graph.Task(b, fmt.Sprint(n), x.alloc, nil)
		b.Chain(head, it, tail)
	}
	g, err := b.Build()
	require.NoError(t, err)
	x.g = g
	left := 0
	ended := func(i *graph.Instance[int], err error) {
		if err != nil {
			panic(err)
		}
		left--
	}
	x.pool, err = g.Pool(4, func(i *graph.Instance[int]) { ended(i, nil) }, ended)
	require.NoError(t, err)
	require.NoError(t, x.engine.Connect(g))
	require.NoError(t, g.Start())
	var all []*graph.Instance[int]
	for range 4 {
		all = append(all, must(x.pool.Alloc(0)))
	}
	round := func() {
		for _, i := range all {
			if err := i.Submit(); err != nil {
				panic(err)
			}
		}
		for left = len(all); left > 0; {
			if _, err := x.engine.Progress(); err != nil {
				panic(err)
			}
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(2000, round))
	for _, i := range all {
		require.NoError(t, i.Free())
	}
	x.close()
}

// Random graphs, of which several instances run at once, with nodes that fail, few
// tasks, jobs that end in any order, and a stop at any moment: nodes run at most
// once, after all that they depend on; errors stop their descendants and nothing
// else; what an instance reports is what has happened.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := newBench[*record](t, rapid.IntRange(1, 4).Draw(rt, "tasks"))
		n := rapid.IntRange(1, 10).Draw(rt, "nodes")
		b := graph.NewBuilder[*record]("g")
		nodes := make([]*graph.Node, n)
		before := make([][]int, n)
		for i := range nodes {
			name := fmt.Sprint(i)
			begin := func(r *record) { r.begin(i, before[i]) }
			if rapid.Bool().Draw(rt, "is a task") {
				nodes[i] = graph.Task(b, name, func(r *record) (*petest.Job, error) {
					j, err := x.lab.Jobs.Alloc()
					if err == nil {
						begin(r)
						j.Err = r.fails[i]
					}
					return j, err
				}, func(r *record, _ *petest.Job) error {
					r.ended[i] = true
					return nil
				})
			} else {
				nodes[i] = b.Func(name, func(r *record) error {
					begin(r)
					r.ended[i] = r.fails[i] == nil
					return r.fails[i]
				})
			}
		}
		order := rapid.Permutation(slices.Collect(seq(n))).Draw(rt, "order")
		for i := range order {
			for j := range i {
				if rapid.IntRange(0, 3).Draw(rt, "edge") == 0 {
					b.Edge(nodes[order[j]], nodes[order[i]])
					before[order[i]] = append(before[order[i]], order[j])
				}
			}
		}
		instances := rapid.IntRange(1, 3).Draw(rt, "instances")
		x.build(b, instances)
		stopAt := rapid.IntRange(-1, 30).Draw(rt, "stop")
		stopped := false
		rounds := rapid.IntRange(1, 3).Draw(rt, "rounds")
		results := map[*record]int{}
		check := func(i *graph.Instance[*record], err error) {
			r := i.Value()
			results[r]++
			r.check(rt, before, err, stopped)
		}
		step := 0
		for range rounds {
			if stopped {
				break
			}
			for range instances {
				r := &record{t: rt, begun: make([]int, n), ended: make([]bool, n), fails: make([]error, n)}
				for i := range n {
					if rapid.IntRange(0, 5).Draw(rt, "fails") == 0 {
						r.fails[i] = fmt.Errorf("node %d: %w", i, errBoom)
					}
				}
				x.submit(r)
			}
			for len(x.done) < instances {
				if step == stopAt {
					require.NoError(rt, x.g.Stop())
					stopped = true
				}
				step++
				if len(x.lab.Posted) > 0 && rapid.Bool().Draw(rt, "a job ends") {
					x.lab.Finish(rapid.IntRange(0, len(x.lab.Posted)-1).Draw(rt, "which"))
				}
				_, err := x.engine.Progress()
				require.NoError(rt, err)
			}
			require.Zero(rt, x.lab.Allocated())
			failed := 0
			for _, i := range x.done {
				var err error
				for _, e := range x.errs {
					if x.of[e] == i {
						err = e
						failed++
					}
				}
				check(i, err)
				require.NoError(rt, i.Free())
			}
			require.Equal(rt, len(x.errs), failed)
			x.done, x.errs = nil, nil
		}
		for _, times := range results {
			require.Equal(rt, 1, times)
		}
		x.close()
	})
}

func seq(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// record is what happened in one run of a random graph.
type record struct {
	t     require.TestingT
	begun []int
	ended []bool // with success
	fails []error
}

func (r *record) begin(i int, before []int) {
	r.begun[i]++
	require.Equal(r.t, 1, r.begun[i], "node %d ran twice", i)
	for _, j := range before {
		require.True(r.t, r.ended[j], "node %d ran before %d had succeeded", i, j)
	}
}

// check compares what an instance reports with what has happened.
func (r *record) check(t require.TestingT, before [][]int, err error, stopped bool) {
	var failed, notRun []string
	for i := range r.begun {
		name := fmt.Sprint(i)
		ready := !slices.ContainsFunc(before[i], func(j int) bool { return !r.ended[j] })
		switch {
		case r.begun[i] == 0:
			notRun = append(notRun, name)
			require.True(t, !ready || stopped, "node %d was left out for no reason", i)
		case r.fails[i] != nil:
			failed = append(failed, name)
		default:
			require.True(t, r.ended[i])
		}
	}
	if len(failed)+len(notRun) == 0 {
		require.NoError(t, err)
		return
	}
	var run *graph.RunError
	require.ErrorAs(t, err, &run)
	require.Equal(t, notRun, run.NotRun)
	var names []string
	for _, n := range run.Failed {
		names = append(names, n.Node)
		require.ErrorIs(t, n, errBoom)
	}
	require.ElementsMatch(t, failed, names)
	require.Equal(t, errors.Is(err, graph.ErrFlushed), run.Stopped)
	require.True(t, stopped || !run.Stopped)
}

// A graph that waits for instances to be freed has nothing to do: the engine
// sleeps, or this test would not end.
func TestStoppingWithHeldInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench[*trace](t, 1)
		b := graph.NewBuilder[*trace]("g")
		b.Func("only", noting("only"))
		x.build(b, 1)
		require.NoError(t, x.lab.Stop())
		x.submit(&trace{})
		x.quiesce()
		require.NoError(t, x.g.Stop())
		ended := make(chan error)
		go func() { ended <- x.engine.Run(t.Context()) }()
		synctest.Wait()
		require.Equal(t, pe.Stopping, x.g.State())
		require.NoError(t, x.engine.Do(func() {
			require.NoError(t, x.done[0].Free())
			x.done = nil
		}))
		require.NoError(t, <-ended)
		x.close()
	})
}

// A node that is called again for an exhausted pool, stops the graph, and finds the
// pool exhausted again waits no more.
func TestStopWhileWaitingAgain(t *testing.T) {
	x := newBench[*trace](t, 1)
	b := graph.NewBuilder[*trace]("g")
	attempts := 0
	it := graph.Task(b, "it", func(*trace) (*petest.Job, error) {
		if attempts++; attempts == 2 {
			require.NoError(t, x.g.Stop())
			_, err := x.lab.Jobs.Alloc()
			require.NoError(t, err)
		}
		return x.lab.Jobs.Alloc()
	}, nil)
	b.Edge(it, b.Func("next", noting("next")))
	x.build(b, 1)
	taken := must(x.lab.Jobs.Alloc())
	r := &trace{}
	x.submit(r)
	x.quiesce()
	require.NoError(t, taken.Free())
	x.quiesce()
	require.Equal(t, 2, attempts)
	require.Len(t, x.errs, 1, "it still waits")
	require.ErrorIs(t, x.errs[0], graph.ErrFlushed)
	require.Empty(t, r.list)
	require.NoError(t, taken.Free()) // it has been allocated once more
	x.close()
}
