package graph_test

import (
	"strconv"
	"testing"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

const length = 16

// BenchmarkChain runs a chain of 16 tasks that end at once, through a graph.
func BenchmarkChain(b *testing.B) {
	x := newBench[int](b, 1)
	x.lab.Auto = true
	builder := graph.NewBuilder[int]("chain")
	var nodes []*graph.Node
	for n := range length {
		nodes = append(nodes, graph.Task(builder, strconv.Itoa(n), x.alloc, nil))
	}
	builder.Chain(nodes...)
	g := must(builder.Build())
	x.g, x.done = g, nil
	ended := false
	pool := must(g.Pool(1, func(*graph.Instance[int]) { ended = true }, func(_ *graph.Instance[int], err error) { panic(err) }))
	must(0, x.engine.Connect(g))
	must(0, g.Start())
	i := must(pool.Alloc(0))
	b.ReportAllocs()
	for b.Loop() {
		must(0, i.Submit())
		for ended = false; !ended; {
			must(x.engine.Progress())
		}
	}
	must(0, i.Free())
	x.close()
}

// BenchmarkChainByHand is the same with callbacks.
func BenchmarkChainByHand(b *testing.B) {
	x := newBench[int](b, 1)
	x.lab.Auto = true
	left := 0
	var next func(j *petest.Job, err error)
	begin := func() { must(0, pe.SubmitOrFree(must(x.alloc(0)), nil, next)) }
	next = func(j *petest.Job, err error) {
		must(0, err)
		must(0, j.Free())
		if left--; left > 0 {
			begin()
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		left = length
		begin()
		for left > 0 {
			must(x.engine.Progress())
		}
	}
	must(0, x.lab.Stop())
	x.quiesce()
	must(0, x.engine.Close())
}
