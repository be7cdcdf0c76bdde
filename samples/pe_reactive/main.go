// Command pe_reactive has all its logic in callbacks: one for changes of the context's state, which
// starts and ends the work, and one for completed copies, which submits the next copy. The main function makes the objects and calls Run, which sleeps while there is nothing
// to do and returns when the context is Idle.
//
// The work is a chain of 16 copies. Each copies the data that the previous one has written.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const copies, size = 16, 4096 // bytes of each

func main() {
	info := sample.Program{Name: "pe_reactive", About: "Copies memory in a chain, with all logic in callbacks.", Device: "soft-lo"}
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	memory, err := mmap.Alloc(dev, (1+copies)*size, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	rand.Read(memory.Bytes()[:size])

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	d, err := dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex})
	if err != nil {
		return err
	}
	var pool *dma.CopyPool
	done := 0
	submit := func() { // the next copy
		from := done * size
		task, err := pool.Alloc(bufinv.Source(memory, from, size), bufinv.Target(memory, from+size, size))
		d.Fail(pe.SubmitOrFree(task, err)) // Fail(nil) does nothing
	}
	pool, err = d.CopyPool(1, func(t *dma.CopyTask) {
		s.Print("copy %d: %d bytes", done, t.Length())
		d.Fail(t.Free())
		if done++; done < copies {
			submit()
		} else {
			d.Stop()
		}
	}, pe.FailContext)
	if err != nil {
		return err
	}
	d.OnStateChange(func(_, next pe.State) {
		s.Print("the context is %v", next)
		switch {
		case next == pe.Running:
			submit()
		case next == pe.Idle && d.Err() == nil:
			if !bytes.Equal(memory.Bytes()[:size], memory.Bytes()[copies*size:]) {
				d.Fail(errors.New("at the end of the chain the data differs"))
				return
			}
			s.Print("%d copies in a chain, the data is the same", copies)
		}
	})
	d.Fail(d.Start())
	return engine.Run(ctx) // from here on everything happens in callbacks
}
