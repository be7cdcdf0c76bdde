// Command pe_single_task_comp_cb gives tasks one function for their completion,
// which gets success and failure alike; the pool is made with pe.Done and
// pe.Failed for that. The function is given with each task, so that it can hold what
// belongs to that one: here the number of the copy.
//
// Sixteen copies succeed. A seventeenth, which is held back at first, is overtaken by
// the stop of the context: it comes back to the same function, flushed.
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

const copies, size = 16, 4096 // bytes of each

func main() {
	info := sample.Program{Name: "pe_single_task_comp_cb", About: "Copies memory, with one function for success and failure of a task.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	engine *pe.Engine
	dma    *dma.Context
	pool   *dma.CopyPool
	memory *mmap.Map
	done   int // copies that have completed
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.memory, err = mmap.Alloc(dev, 2*copies*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	rand.Read(p.memory.Bytes()[:copies*size])
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close) // and the context
	if p.dma, err = dma.New(dev, dma.Config{Engine: p.engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.dma.CopyPool(copies, pe.Done, pe.Failed); err != nil {
		return err
	}
	p.dma.OnStateChange(func(_, next pe.State) {
		for i := 0; next == pe.Running && i < copies; i++ {
			task, err := p.alloc(i)
			p.dma.Fail(pe.SubmitNew(task, err, p.completed(i)))
		}
	})
	if err := errors.Join(p.dma.Start(), p.engine.Run(ctx)); err != nil {
		return err
	}
	p.Print("%d copies completed, the data is the same", p.done)
	return nil
}

func (p *program) alloc(i int) (*dma.CopyTask, error) {
	at := i % copies * size
	return p.pool.Alloc(bufinv.Source(p.memory, at, size), bufinv.Target(p.memory, copies*size+at, size))
}

// completed returns the function for one copy.
func (p *program) completed(i int) func(*dma.CopyTask, error) {
	return func(t *dma.CopyTask, err error) {
		switch {
		case i == copies && errors.Is(err, dma.ErrFlushed):
			p.Print("copy %d: flushed", i)
		case err != nil:
			p.dma.Fail(fmt.Errorf("copy %d: %w", i, err))
		case !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()):
			p.dma.Fail(fmt.Errorf("copy %d: the data differs", i))
		default:
			p.Print("copy %d: %d bytes", i, t.Length())
			p.done++
		}
		p.dma.Fail(t.Free())
		if p.done == copies && i < copies {
			p.dma.Fail(p.engine.Do(p.overtake)) // later: what is held back is posted after the callbacks
		}
	}
}

// overtake submits one more copy and stops the context before it is posted.
func (p *program) overtake() {
	task, err := p.alloc(copies)
	if err == nil {
		pe.Then(task, p.completed(copies))
		if err = task.SubmitWith(pe.Aggregate); err != nil {
			err = errors.Join(err, task.Free())
		}
	}
	p.dma.Fail(err)
	p.dma.Stop()
}
