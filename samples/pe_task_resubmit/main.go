// Command pe_task_resubmit copies 16 pairs of buffers with four tasks. The callback
// of a task that has completed gives it the next pair and submits it again: nothing
// is allocated or freed in between, and four copies are under way at a time.
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

const tasks, copies, size = 4, 16, 4096 // bytes of each copy

// job is what a task does: a user's value, which stays with the task.
type job struct{ task, pair int }

func main() {
	info := sample.Program{Name: "pe_task_resubmit", About: "Copies 16 pairs of buffers with four tasks.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	dma    *dma.Context
	pool   *dma.CopyPool
	memory *mmap.Map
	next   int // the pair that is to be copied next
	left   int // tasks that have work
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
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	if p.dma, err = dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.dma.CopyPool(tasks, p.done, p.failed); err != nil {
		return err
	}
	p.dma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			p.dma.Fail(p.begin())
		}
	})
	if err := errors.Join(p.dma.Start(), engine.Run(ctx)); err != nil {
		return err
	}
	p.Print("%d pairs copied by %d tasks, the data is the same", p.next, tasks)
	return nil
}

// begin gives each task its first pair.
func (p *program) begin() error {
	for i := range tasks {
		task, err := p.pool.Alloc(p.pair())
		if err != nil {
			return err
		}
		task.SetUserData(&job{i, p.next})
		if err := pe.SubmitNew(task, nil, nil); err != nil {
			return err
		}
		p.next++
		p.left++
	}
	return nil
}

// pair returns the buffers of the next pair.
func (p *program) pair() (from, to *bufinv.Buf) {
	at := p.next * size
	return bufinv.Source(p.memory, at, size), bufinv.Target(p.memory, copies*size+at, size)
}

// done submits a task again with the next pair. The old buffers are freed by that.
func (p *program) done(t *dma.CopyTask) {
	j := t.UserData().(*job)
	p.Print("task %d: pair %d, %d bytes", j.task, j.pair, t.Length())
	if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
		p.dma.Fail(fmt.Errorf("pair %d: the data differs", j.pair))
	}
	if p.dma.Err() != nil || p.next == copies {
		p.failed(t, nil)
		return
	}
	from, to := p.pair()
	j.pair = p.next
	p.next++
	err := errors.Join(t.SetSource(from), t.SetDestination(to))
	if err == nil {
		err = t.Submit()
	}
	if err != nil {
		p.failed(t, err)
	}
}

// failed frees a task, and its buffers with it, and stops the context after the last one.
func (p *program) failed(t *dma.CopyTask, err error) {
	p.dma.Fail(errors.Join(err, t.Free()))
	if p.left--; p.left == 0 {
		p.dma.Stop()
	}
}
