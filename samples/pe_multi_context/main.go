// Command pe_multi_context has one engine drive four contexts. Each is started,
// works and stops on its own; their callbacks run on the one goroutine that drives
// the engine, so that what they share needs no lock. Run returns when all four are
// Idle.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	contexts = 4
	copies   = 16   // of each context
	size     = 4096 // bytes of each copy
)

func main() {
	sample.Main(sample.Program{
		Name:   "pe_multi_context",
		About:  "Copies memory with four contexts on one engine.",
		Device: "soft-lo",
	}, run)
}

type program struct {
	*sample.Session
	dev     verbs.Device
	engine  *pe.Engine
	bufs    *bufinv.Inventory
	memory  *mmap.Map // what is copied in the first half, room for it in the second
	workers []*worker
	total   int // copies of all contexts
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &program{Session: s}
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if p.memory, err = mmap.Alloc(p.dev, 2*contexts*copies*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.memory.Close)
	rand.Read(p.memory.Bytes()[:contexts*copies*size])
	if p.bufs, err = bufinv.New(2 * contexts * copies); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	for i := range contexts {
		var w *worker
		if w, err = p.newWorker(i); err != nil {
			return err
		}
		p.workers = append(p.workers, w)
		defer sample.Close(&err, w.dma.Close)
	}

	for _, w := range p.workers {
		w.fail(w.dma.Start())
	}
	p.Print("the engine drives %d contexts", p.engine.Active())
	if err := p.engine.Run(ctx); err != nil {
		return err
	}
	for _, w := range p.workers {
		p.Print("%s: %d copies completed, it is %v", w.dma.Name(), copies-w.left, w.dma.State())
	}
	p.Print("%d copies in all, the data is the same", p.total)
	return nil
}

// worker is one of the contexts, with its part of the work.
type worker struct {
	*program
	number int
	dma    *dma.Context
	pool   *dma.CopyPool
	left   int // copies that have not completed
}

func (p *program) newWorker(number int) (*worker, error) {
	w := &worker{program: p, number: number, left: copies}
	name := fmt.Sprintf("context %d", number)
	var err error
	if w.dma, err = dma.New(p.dev, dma.Config{
		Engine: p.engine, Name: name, GIDIndex: p.GIDIndex, Log: p.Log,
	}); err != nil {
		return nil, err
	}
	if w.pool, err = w.dma.CopyPool(copies, w.done, w.failed); err != nil {
		return nil, err
	}
	w.dma.OnStateChange(func(prev, next pe.State) {
		if next == pe.Running {
			w.fail(w.submit())
		}
	})
	return w, nil
}

func (w *worker) submit() error {
	for i := range copies {
		from := (w.number*copies + i) * size
		to := contexts*copies*size + from
		task, err := w.pool.Alloc(w.bufs.Source(w.memory, from, size), w.bufs.Target(w.memory, to, size))
		if err != nil {
			return err
		}
		if err := task.Submit(); err != nil {
			w.fail(task.Free())
			return err
		}
	}
	return nil
}

func (w *worker) done(t *dma.CopyTask) {
	if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
		w.fail(fmt.Errorf("%s: the data differs", w.dma.Name()))
	}
	w.fail(t.Free())
	w.total++ // of all contexts, and nobody else is at it
	if w.left--; w.left == 0 {
		w.dma.Stop()
	}
}

func (w *worker) failed(t *dma.CopyTask, err error) {
	w.fail(err)
	w.fail(t.Free())
}

// fail ends the worker's context with an error, and stops the others.
func (w *worker) fail(err error) {
	if err == nil {
		return
	}
	w.dma.Fail(err)
	for _, other := range w.workers {
		other.dma.Stop()
	}
}
