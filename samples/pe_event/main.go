//go:build linux

// Command pe_event waits for an engine in its own event loop: the engine's descriptor is in an
// epoll set, which can also hold everything else that a program waits for. The loop sleeps
// while there is nothing to do. Timers request a copy every millisecond, through Engine.Do: so the
// loop's goroutine does all work of the engine.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

const copies, size = 16, 4096 // bytes of each

func main() {
	info := sample.Program{Name: "pe_event", About: "Copies memory, with an engine whose descriptor is in an epoll set (Linux).", Device: "soft-lo"}
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
		d.Fail(t.Free()) // Fail(nil) does nothing
		if done++; done == copies {
			d.Stop()
		}
	}, pe.FailContext)
	if err != nil {
		return err
	}
	if err := d.Start(); err != nil { // a DMA context is Running at once
		return err
	}

	// Timers request copies. The end of ctx ends the context.
	defer context.AfterFunc(ctx, func() { engine.Do(func() { d.Fail(context.Cause(ctx)) }) })()
	submit := func(i int) {
		task, err := pool.Alloc(bufinv.Source(memory, i*size, size), bufinv.Target(memory, (copies+i)*size, size))
		d.Fail(pe.SubmitOrFree(task, err))
	}
	for i := range copies {
		time.AfterFunc(time.Duration(i)*time.Millisecond, func() { engine.Do(func() { submit(i) }) })
	}

	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(set)
	fd, err := engine.NotificationFD()
	if err != nil {
		return err
	}
	if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return err
	}
	sleeps := 0
	for events := make([]unix.EpollEvent, 1); engine.Active() > 0; sleeps++ {
		// Arm the notification, and wait for it. It arrives at once if there is work already.
		if err := engine.Arm(); err != nil {
			return err
		}
		if _, err := unix.EpollWait(set, events, -1); err != nil && err != unix.EINTR {
			return err
		}
		if _, err := engine.Progress(); err != nil {
			return err
		}
	}
	s.Log.Info().Int("sleeps", sleeps).Msg("the loop has ended")
	s.Print("the context is %v", d.State())
	if d.Err() == nil {
		s.Print("%d copies completed, the data is the same", done)
	}
	return d.Err()
}
