// Command graph runs a graph of three nodes: two concurrent copies of the same data, and a
// function that compares the copies when both have completed. The graph is built once and runs
// as ten instances, each on its own value. Graph and instances are a context and its tasks, on
// the same engine as the context of the copies.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const (
	instances = 10
	size      = 4096 // bytes of each copy
)

// job is the value of an instance: its parts of the memory.
type job struct{ number, from, first, second int }

func main() {
	info := sample.Program{Name: "graph", About: "Runs a graph of two copies and a comparison, ten times.", Device: "soft-lo"}
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	memory, err := mmap.Alloc(dev, 3*instances*size, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	rand.Read(memory.Bytes()[:instances*size])

	// The graph handles the completions of its nodes' tasks: their pool is made with pe.TaskDone
	// and pe.TaskFailed.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	d, err := dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex})
	if err != nil {
		return err
	}
	copies, err := d.CopyPool(2*instances, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	copyTo := func(from, to int) (*dma.CopyTask, error) {
		return copies.Alloc(bufinv.Source(memory, from, size), bufinv.Target(memory, to, size))
	}
	b := graph.NewBuilder[*job]("copy twice")
	first := graph.Task(b, "first copy", func(j *job) (*dma.CopyTask, error) { return copyTo(j.from, j.first) }, nil)
	second := graph.Task(b, "second copy", func(j *job) (*dma.CopyTask, error) { return copyTo(j.from, j.second) }, nil)
	compare := b.Func("compare", func(j *job) error {
		at := func(offset int) []byte { return memory.Bytes()[offset : offset+size] }
		if !bytes.Equal(at(j.from), at(j.first)) || !bytes.Equal(at(j.first), at(j.second)) {
			return errors.New("the copies differ")
		}
		return nil
	})
	b.Edge(first, compare)
	b.Edge(second, compare)
	g, err := b.Build()
	if err == nil {
		err = engine.Connect(g)
	}
	if err != nil {
		return err
	}
	pool, err := g.Pool(instances, func(i *graph.Instance[*job]) {
		s.Print("instance %d: both copies are the same", i.Value().number)
		g.Fail(i.Free()) // Fail(nil) does nothing
	}, pe.FailContext)
	if err != nil {
		return err
	}
	g.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Running:
			for i := range instances {
				instance, err := pool.Alloc(&job{i, i * size, (instances + i) * size, (2*instances + i) * size})
				g.Fail(pe.SubmitOrFree(instance, err))
			}
			g.Fail(g.StopWhenDone())
		case pe.Idle:
			d.Stop() // after the graph, whose tasks it runs
		}
	})
	if err := errors.Join(d.Start(), g.Start()); err != nil {
		return err
	}
	if err := engine.Run(ctx); err != nil {
		return err
	}
	s.Print("%d instances of a graph of 2 copies and 1 comparison have run", instances)
	return nil
}
