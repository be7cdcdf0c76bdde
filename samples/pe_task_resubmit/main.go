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

// job is the user data of a task.
type job struct{ task, pair int }

func main() {
	info := sample.Program{Name: "pe_task_resubmit", About: "Copies 16 pairs of buffers with four tasks.", Device: "soft-lo"}
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
	pair := func(i int) (from, to *bufinv.Buf) {
		return bufinv.Source(memory, i*size, size), bufinv.Target(memory, (copies+i)*size, size)
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	d, err := dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex})
	if err != nil {
		return err
	}
	next := 0 // the next pair to copy
	pool, err := d.CopyPool(tasks, func(t *dma.CopyTask) {
		j := t.UserData().(*job)
		s.Print("task %d: pair %d, %d bytes", j.task, j.pair, t.Length())
		if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
			d.Fail(fmt.Errorf("pair %d: the data differs", j.pair))
		}
		if d.Err() != nil || next == copies {
			d.Fail(t.Free()) // Fail(nil) does nothing
			return
		}
		from, to := pair(next)
		j.pair = next
		next++
		d.Fail(pe.SubmitOrFree(t, errors.Join(t.SetSource(from), t.SetDestination(to)))) // the old buffers are freed
	}, pe.FailContext)
	if err != nil {
		return err
	}
	d.OnStateChange(func(_, state pe.State) {
		for ; state == pe.Running && next < tasks; next++ { // each task gets its first pair
			task, err := pool.Alloc(pair(next))
			if err == nil {
				task.SetUserData(&job{next, next})
			}
			d.Fail(pe.SubmitOrFree(task, err))
		}
		if state == pe.Running {
			d.Fail(d.StopWhenDone())
		}
	})
	if err := errors.Join(d.Start(), engine.Run(ctx)); err != nil {
		return err
	}
	s.Print("%d pairs copied by %d tasks, the data is the same", next, tasks)
	return nil
}
