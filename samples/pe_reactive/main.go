// Command pe_reactive has all of its logic in callbacks: the one for changes of
// the context's state starts the work and ends it, the one of a completed copy
// decides what comes next. The main function makes the objects and calls Run, which
// sleeps while there is nothing to do and returns when the context is Idle.
//
// The work is a chain of 16 copies, each of what the one before it has written.
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

const (
	copies = 16
	size   = 4096 // bytes of each
)

func main() {
	info := sample.Program{Name: "pe_reactive", About: "Copies memory in a chain, with all logic in callbacks.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	dma    *dma.Context
	pool   *dma.CopyPool
	memory *mmap.Map // one place for what is copied, and one for each copy
	next   int       // the number of the next copy
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.memory, err = mmap.Alloc(dev, (1+copies)*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	rand.Read(p.memory.Bytes()[:size])
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	if p.dma, err = dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.dma.CopyPool(1, p.done, p.failed); err != nil {
		return err
	}
	p.dma.OnStateChange(p.stateChanged)
	if err := p.dma.Start(); err != nil {
		return err
	}
	return engine.Run(ctx) // from here on everything happens in callbacks
}

func (p *program) stateChanged(_, next pe.State) {
	p.Print("the context is %v", next)
	switch {
	case next == pe.Running:
		p.submit()
	case next == pe.Idle && p.dma.Err() == nil:
		if !bytes.Equal(p.memory.Bytes()[:size], p.memory.Bytes()[copies*size:]) {
			p.dma.Fail(errors.New("at the end of the chain the data differs"))
			return
		}
		p.Print("%d copies in a chain, the data is the same", copies)
	}
}

func (p *program) submit() {
	from := p.next * size
	task, err := p.pool.Alloc(bufinv.Source(p.memory, from, size), bufinv.Target(p.memory, from+size, size))
	p.dma.Fail(pe.SubmitNew(task, err, nil))
}

// done submits the next copy, or stops the context after the last one.
func (p *program) done(t *dma.CopyTask) {
	p.Print("copy %d: %d bytes", p.next, t.Length())
	p.dma.Fail(t.Free())
	if p.next++; p.next < copies {
		p.submit()
	} else {
		p.dma.Stop()
	}
}

func (p *program) failed(t *dma.CopyTask, err error) { p.dma.Fail(errors.Join(err, t.Free())) }
