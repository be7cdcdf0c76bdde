// Command pe_single_task_comp_cb gives each task a completion function of its own, which is
// called for success and failure alike; the pool is made with pe.TaskDone and pe.TaskFailed for that.
// The function can thus hold data of that one task: here the number of the copy.
//
// Sixteen copies succeed. The context stops before a seventeenth, which was held back, is
// posted: its function gets it, flushed.
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
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	memory, err := mmap.Alloc(dev, 2*copies*size, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	rand.Read(memory.Bytes()[:copies*size])

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	d, err := dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex})
	if err != nil {
		return err
	}
	pool, err := d.CopyPool(copies, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	alloc := func(i int) (*dma.CopyTask, error) {
		at := i % copies * size
		return pool.Alloc(bufinv.Source(memory, at, size), bufinv.Target(memory, copies*size+at, size))
	}
	done := 0
	var overtake func()
	completed := func(i int) func(*dma.CopyTask, error) { // the function for one copy
		return func(t *dma.CopyTask, err error) {
			switch {
			case i == copies && errors.Is(err, dma.ErrFlushed):
				s.Print("copy %d: flushed", i)
			case err != nil:
				d.Fail(fmt.Errorf("copy %d: %w", i, err))
			case !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()):
				d.Fail(fmt.Errorf("copy %d: the data differs", i))
			default:
				s.Print("copy %d: %d bytes", i, t.Length())
				done++
			}
			d.Fail(t.Free())
			if done == copies && i < copies {
				d.Fail(engine.Do(overtake)) // later: held tasks are posted after the callbacks
			}
		}
	}
	overtake = func() { // submits one more copy, and stops the context before it is posted
		task, err := alloc(copies)
		if err == nil {
			pe.Then(task, completed(copies))
			if err = task.Submit(pe.Aggregate); err != nil {
				err = errors.Join(err, task.Free())
			}
		}
		d.Fail(err)
		d.Stop()
	}
	d.OnStateChange(func(_, next pe.State) {
		for i := 0; next == pe.Running && i < copies; i++ {
			task, err := alloc(i)
			d.Fail(pe.SubmitOrFree(task, err, completed(i)))
		}
	})
	if err := errors.Join(d.Start(), engine.Run(ctx)); err != nil {
		return err
	}
	s.Print("%d copies completed, the data is the same", done)
	return nil
}
