//go:build linux

// Command pe_event waits for an engine in an event loop of its own: the engine has
// a descriptor, which goes into an epoll set together with everything else that
// the program waits for. The loop sleeps while there is nothing to do.
//
// Here another goroutine asks for a copy every millisecond, through Engine.Do: all
// calls that belong to the engine are made on one goroutine, that of the loop.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	period = time.Millisecond
)

func main() {
	info := sample.Program{Name: "pe_event", About: "Copies memory, with an engine whose descriptor is in an epoll set (Linux).", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	engine *pe.Engine
	dma    *dma.Context
	pool   *dma.CopyPool
	memory *mmap.Map
	left   int // copies that have not completed, or been asked for
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session, p.left = s, copies
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory

	// Memory: what is copied in the first half, room for it in the second.
	if p.memory, err = mmap.Alloc(dev, 2*copies*size, mmap.LocalReadWrite); err != nil {
		return err
	}
	rand.Read(p.memory.Bytes()[:copies*size])

	// The engine, and on it the context with a pool of copies.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close) // and the context
	if p.dma, err = dma.New(dev, dma.Config{Engine: p.engine, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.dma.CopyPool(copies, p.done, p.failed); err != nil {
		return err
	}

	if err := p.dma.Start(); err != nil {
		return err
	}

	// Others ask for copies, and for the end when ctx ends.
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { p.ask(ctx) })

	sleeps, err := p.loop()
	if err != nil {
		return err
	}
	p.Log.Info().Int("sleeps", sleeps).Msg("the loop has ended")
	p.Print("the context is %v", p.dma.State())
	if p.dma.Err() == nil {
		p.Print("%d copies completed, the data is the same", copies)
	}
	return p.dma.Err()
}

// ask runs on a goroutine of its own.
func (p *program) ask(ctx context.Context) {
	for i := range copies {
		select {
		case <-time.After(period):
			p.engine.Do(func() { p.dma.Fail(p.submit(i)) })
		case <-ctx.Done():
			p.engine.Do(func() { p.dma.Fail(context.Cause(ctx)) })
			return
		}
	}
}

// loop drives the engine until its contexts are Idle, and returns how often it has
// slept.
func (p *program) loop() (sleeps int, err error) {
	fd, err := p.engine.NotificationFD()
	if err != nil {
		return 0, err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return 0, err
	}
	events := make([]unix.EpollEvent, 1)
	for {
		// All that there is to do.
		for n := 1; n > 0; {
			if n, err = p.engine.Progress(); err != nil {
				return sleeps, err
			}
		}
		if p.engine.Active() == 0 {
			return sleeps, nil
		}
		// Ask for a notification, wait for it, take it off. If something has
		// come up since Progress, it is there at once.
		if err := p.engine.Arm(); err != nil {
			return sleeps, err
		}
		if _, err := unix.EpollWait(ep, events, -1); err != nil && err != unix.EINTR {
			return sleeps, err
		}
		sleeps++
		if err := p.engine.Clear(); err != nil {
			return sleeps, err
		}
	}
}

func (p *program) submit(i int) error {
	from, to := i*size, (copies+i)*size
	task, err := p.pool.Alloc(bufinv.Source(p.memory, from, size), bufinv.Target(p.memory, to, size))
	if err == nil {
		task.SetUserData(i)
	}
	return pe.SubmitNew(task, err, nil)
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
