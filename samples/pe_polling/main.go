// Command pe_polling drives the engine by hand: it submits 16 copies to a DMA context, and
// calls Progress in a loop until all have completed and the context is Idle again. Such a loop
// never sleeps: it has the lowest latency, and uses a whole processor. pe_event sleeps while
// there is nothing to do.
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
)

const copies, size = 16, 4096 // bytes of each

func main() {
	info := sample.Program{Name: "pe_polling", About: "Copies memory, with an engine that is driven in a loop of the program's own.", Device: "soft-lo"}
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
	done := 0
	pool, err := d.CopyPool(copies, func(t *dma.CopyTask) {
		s.Print("copy %d: %d bytes", done, t.Length())
		if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
			d.Fail(fmt.Errorf("copy %d: the data differs", done))
		}
		done++
		d.Fail(t.Free()) // and the buffers; Fail(nil) does nothing
	}, pe.FailContext)
	if err != nil {
		return err
	}

	if err := d.Start(); err != nil { // a DMA context is Running at once
		return err
	}
	for i := range copies {
		task, err := pool.Alloc(bufinv.Source(memory, i*size, size), bufinv.Target(memory, (copies+i)*size, size))
		d.Fail(pe.SubmitOrFree(task, err))
	}
	s.Print("%d copies submitted", copies)
	d.Fail(d.StopWhenDone())

	calls := 0
	for n := 1; n > 0 || engine.Active() > 0; calls++ {
		if ctx.Err() != nil {
			d.Fail(context.Cause(ctx))
		}
		if n, err = engine.Progress(); err != nil { // the callbacks run in here
			return err
		}
	}
	s.Log.Info().Int("calls", calls).Msg("progress")
	s.Print("the context is %v", d.State())
	if d.Err() == nil {
		s.Print("%d copies completed, the data is the same", done)
	}
	return d.Err()
}
