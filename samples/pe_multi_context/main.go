// Command pe_multi_context has one engine drive four contexts. Each is started,
// works and stops on its own; their callbacks run on the one goroutine that drives
// the engine, so that what they share needs no lock. Run returns when all four are
// Idle.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const contexts, copies, size = 4, 16, 4096 // copies of each context, bytes of each copy

func main() {
	info := sample.Program{Name: "pe_multi_context", About: "Copies memory with four contexts on one engine.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	memory  *mmap.Map // what is copied in the first half, room for it in the second
	workers [contexts]*worker
	total   int // copies of all contexts
}

type worker struct {
	*program
	number int
	dma    *dma.Context
	pool   *dma.CopyPool
	left   int // copies that have not completed
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.memory, err = mmap.Alloc(dev, 2*contexts*copies*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	rand.Read(p.memory.Bytes()[:contexts*copies*size])
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	for i := range p.workers {
		w := &worker{program: p, number: i, left: copies}
		p.workers[i] = w
		w.dma, err = dma.New(dev, dma.Config{Engine: engine, Name: fmt.Sprintf("context %d", i), GIDIndex: s.GIDIndex, Log: s.Log})
		if err != nil {
			return err
		}
		if w.pool, err = w.dma.CopyPool(copies, w.done, w.failed); err != nil {
			return err
		}
		w.dma.OnStateChange(w.stateChanged)
	}
	for _, w := range p.workers {
		w.fail(w.dma.Start())
	}
	p.Print("the engine drives %d contexts", engine.Active())
	if err := engine.Run(ctx); err != nil {
		return err
	}
	for _, w := range p.workers {
		p.Print("%s: %d copies completed, it is %v", w.dma.Name(), copies-w.left, w.dma.State())
	}
	p.Print("%d copies in all, the data is the same", p.total)
	return nil
}

func (w *worker) stateChanged(_, next pe.State) {
	for i := 0; next == pe.Running && i < copies; i++ {
		at := (w.number*copies + i) * size
		task, err := w.pool.Alloc(bufinv.Source(w.memory, at, size), bufinv.Target(w.memory, contexts*copies*size+at, size))
		w.fail(pe.SubmitNew(task, err, nil))
	}
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

func (w *worker) failed(t *dma.CopyTask, err error) { w.fail(errors.Join(err, t.Free())) }

// fail ends the worker's context with an error, and stops the others.
func (w *worker) fail(err error) {
	w.dma.Fail(err)
	for i := 0; err != nil && i < contexts; i++ {
		w.workers[i].dma.Stop()
	}
}
