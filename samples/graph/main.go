// Command graph runs a graph of three nodes: two copies of the same data, which are
// under way at the same time, and a function that compares them when both have
// completed. The graph is made once and runs as ten instances, each on a value of
// its own. Graph and instances are a context and its tasks, on the same engine as
// the context of the copies.
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
	size      = 4096 // bytes that each copies twice
)

func main() {
	info := sample.Program{Name: "graph", About: "Runs a graph of two copies and a comparison, ten times.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

// job is what an instance works on: its part of the memory.
type job struct{ number, from, first, second int }

type program struct {
	*sample.Session
	dma       *dma.Context
	copies    *dma.CopyPool
	graph     *graph.Graph[*job]
	instances *graph.Pool[*job]
	memory    *mmap.Map
	left      int // instances that have not run
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session, p.left = s, instances
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory

	// Memory: what is copied in the first third, room for it in the others.
	if p.memory, err = mmap.Alloc(dev, 3*instances*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	rand.Read(p.memory.Bytes()[:instances*size])

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts

	// The graph waits for the tasks of its nodes: their pool has these functions.
	if p.dma, err = dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.copies, err = p.dma.CopyPool(2*instances, pe.Done, pe.Failed); err != nil {
		return err
	}
	if err := p.build(); err != nil {
		return err
	}
	p.graph.OnStateChange(p.stateChanged)
	if err := engine.Connect(p.graph); err != nil {
		return err
	}

	p.fail(errors.Join(p.dma.Start(), p.graph.Start()))
	if err := engine.Run(ctx); err != nil {
		return err
	}
	p.Print("%d instances of a graph of 2 copies and 1 comparison have run", instances)
	return nil
}

// build makes the graph, and its instances.
func (p *program) build() (err error) {
	b := graph.NewBuilder[*job]("copy twice")
	first := graph.Task(b, "first copy", func(j *job) (*dma.CopyTask, error) { return p.copy(j.from, j.first) }, nil)
	second := graph.Task(b, "second copy", func(j *job) (*dma.CopyTask, error) { return p.copy(j.from, j.second) }, nil)
	compare := b.Func("compare", p.compare)
	b.Edge(first, compare)
	b.Edge(second, compare)
	if p.graph, err = b.Build(); err != nil {
		return err
	}
	p.instances, err = p.graph.Pool(instances, p.done, p.failed)
	return err
}

func (p *program) copy(from, to int) (*dma.CopyTask, error) {
	return p.copies.Alloc(bufinv.Source(p.memory, from, size), bufinv.Target(p.memory, to, size))
}

func (p *program) compare(j *job) error {
	at := func(offset int) []byte { return p.memory.Bytes()[offset : offset+size] }
	if !bytes.Equal(at(j.from), at(j.first)) || !bytes.Equal(at(j.first), at(j.second)) {
		return errors.New("the copies differ")
	}
	return nil
}

func (p *program) stateChanged(prev, next pe.State) {
	switch next {
	case pe.Running:
		for i := range instances {
			from := i * size
			instance, err := p.instances.Alloc(&job{i, from, from + instances*size, from + 2*instances*size})
			p.fail(pe.SubmitNew(instance, err, nil))
		}
	case pe.Idle:
		p.dma.Stop() // after the graph, whose tasks it runs
	}
}

func (p *program) done(i *graph.Instance[*job]) {
	p.Print("instance %d: both copies are the same", i.Value().number)
	p.failed(i, nil)
}

func (p *program) failed(i *graph.Instance[*job], err error) {
	p.fail(errors.Join(err, i.Free()))
	if p.left--; p.left == 0 {
		p.graph.Stop()
	}
}

// fail ends the graph with an error, and stops the context that copies.
func (p *program) fail(err error) {
	if err != nil {
		p.graph.Fail(err)
		p.dma.Stop()
	}
}
