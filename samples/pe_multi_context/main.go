// Command pe_multi_context drives four contexts with one engine. Each context starts, works
// and stops independently. Their callbacks all run on the goroutine that drives the engine, so
// shared variables need no lock. Run returns when all four contexts are Idle.
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
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)   // and the memory
	const half = contexts * copies * size // what is copied, and room for it
	memory, err := mmap.Alloc(dev, 2*half, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	rand.Read(memory.Bytes()[:half])

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	var all [contexts]*dma.Context
	var done [contexts]int
	total := 0
	for i := range contexts {
		d, err := dma.New(dev, dma.Config{Engine: engine, Name: fmt.Sprintf("context %d", i), GIDIndex: s.GIDIndex})
		if err != nil {
			return err
		}
		all[i] = d
		pool, err := d.CopyPool(copies, func(t *dma.CopyTask) {
			if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
				d.Fail(errors.New("the data differs"))
			}
			d.Fail(t.Free()) // Fail(nil) does nothing
			done[i]++
			total++ // of all contexts: callbacks run on one goroutine
		}, pe.FailContext)
		if err != nil {
			return err
		}
		d.OnStateChange(func(_, next pe.State) {
			if next != pe.Running {
				return
			}
			for n := range copies {
				at := (i*copies + n) * size
				task, err := pool.Alloc(bufinv.Source(memory, at, size), bufinv.Target(memory, half+at, size))
				d.Fail(pe.SubmitOrFree(task, err))
			}
			d.Fail(d.StopWhenDone())
		})
		d.Fail(d.Start())
	}
	s.Print("the engine drives %d contexts", engine.Active())
	if err := engine.Run(ctx); err != nil {
		return err
	}
	for i, d := range all {
		s.Print("%s: %d copies completed, it is %v", d.Name(), done[i], d.State())
	}
	s.Print("%d copies in all, the data is the same", total)
	return nil
}
