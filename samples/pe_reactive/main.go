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
	sample.Main(sample.Program{
		Name:   "pe_reactive",
		About:  "Copies memory in a chain, with all logic in callbacks.",
		Device: "soft-lo",
	}, run)
}

type program struct {
	*sample.Session
	dma    *dma.Context
	pool   *dma.CopyPool
	bufs   *bufinv.Inventory
	memory *mmap.Map // one place for what is copied, and one for each copy
	next   int       // the number of the next copy
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &program{Session: s}
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	if p.memory, err = mmap.Alloc(dev, (1+copies)*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.memory.Close)
	rand.Read(p.memory.Bytes()[:size])
	if p.bufs, err = bufinv.New(2); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close)
	if p.dma, err = dma.New(dev, dma.Config{Engine: engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	defer sample.Close(&err, p.dma.Close)
	if p.pool, err = p.dma.CopyPool(1, p.done, p.failed); err != nil {
		return err
	}
	p.dma.OnStateChange(p.stateChanged)

	// From here on everything happens in callbacks.
	if err := p.dma.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

func (p *program) stateChanged(prev, next pe.State) {
	p.Print("the context is %v", next)
	switch next {
	case pe.Running:
		p.dma.Fail(p.submit())
	case pe.Idle:
		p.dma.Fail(p.verify())
	}
}

func (p *program) submit() error {
	from := p.next * size
	task, err := p.pool.Alloc(p.bufs.Source(p.memory, from, size), p.bufs.Target(p.memory, from+size, size))
	if err != nil {
		return err
	}
	if err := task.Submit(); err != nil {
		p.dma.Fail(task.Free())
		return err
	}
	return nil
}

// done submits the next copy, or stops the context after the last one.
func (p *program) done(t *dma.CopyTask) {
	p.Print("copy %d: %d bytes", p.next, t.Length())
	p.dma.Fail(t.Free())
	if p.next++; p.next < copies {
		p.dma.Fail(p.submit())
	} else {
		p.dma.Stop()
	}
}

func (p *program) failed(t *dma.CopyTask, err error) {
	p.dma.Fail(err)
	p.dma.Fail(t.Free())
}

// verify looks whether the data has come through.
func (p *program) verify() error {
	if p.dma.Err() != nil {
		return nil
	}
	first, last := p.memory.Bytes()[:size], p.memory.Bytes()[copies*size:]
	if !bytes.Equal(first, last) {
		return errors.New("at the end of the chain the data differs")
	}
	p.Print("%d copies in a chain, the data is the same", copies)
	return nil
}
