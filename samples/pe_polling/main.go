// Command pe_polling drives the engine by hand: it submits 16 copies to a DMA
// context, and calls Progress in a loop until all have completed and the context
// is Idle again. Such a loop never sleeps: it has the shortest delay, and takes a
// whole processor. pe_event sleeps while there is nothing to do.
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

const (
	copies = 16
	size   = 4096 // bytes of each
)

func main() {
	info := sample.Program{Name: "pe_polling", About: "Copies memory, with an engine that is driven in a loop of the program's own.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	dma    *dma.Context
	pool   *dma.CopyPool
	memory *mmap.Map
	left   int // copies that have not completed
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
	if p.pool, err = p.dma.CopyPool(copies, p.done, p.failed); err != nil {
		return err
	}
	if err := p.dma.Start(); err != nil { // a DMA context is Running at once
		return err
	}
	p.dma.Fail(p.submit())
	calls := 0
	for n := 1; n > 0 || engine.Active() > 0; calls++ {
		if ctx.Err() != nil {
			p.dma.Fail(context.Cause(ctx))
		}
		if n, err = engine.Progress(); err != nil { // the callbacks run in here
			return err
		}
	}
	p.Log.Info().Int("calls", calls).Msg("progress")
	p.Print("the context is %v", p.dma.State())
	if p.dma.Err() == nil {
		p.Print("%d copies completed, the data is the same", copies)
	}
	return p.dma.Err()
}

func (p *program) submit() error {
	for i := range copies {
		task, err := p.pool.Alloc(bufinv.Source(p.memory, i*size, size), bufinv.Target(p.memory, (copies+i)*size, size))
		if err != nil {
			return err
		}
		task.SetUserData(i)
		if err := pe.SubmitNew(task, nil, nil); err != nil {
			return err
		}
		p.left++
	}
	p.Print("%d copies submitted", copies)
	return nil
}

func (p *program) done(t *dma.CopyTask) {
	p.Print("copy %d: %d bytes", t.UserData(), t.Length())
	if !bytes.Equal(t.Source().Bytes(), t.Destination().Bytes()) {
		p.dma.Fail(fmt.Errorf("copy %d: the data differs", t.UserData()))
	}
	p.failed(t, nil)
}

// failed frees a task, and its buffers with it, and stops the context after the last one.
func (p *program) failed(t *dma.CopyTask, err error) {
	p.dma.Fail(errors.Join(err, t.Free()))
	if p.left--; p.left == 0 {
		p.dma.Stop()
	}
}
