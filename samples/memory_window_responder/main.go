// Command memory_window_responder lends part of its memory to its peer,
// memory_window_requester, which writes to it and returns it. The memory itself grants no
// access: a memory window opens a part of it, to this one peer. After the bind, the window's
// descriptor goes to the peer as a message.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:  "memory_window_responder",
		About: "Lends part of its memory to memory_window_requester, and takes it back.",
		Role:  sample.Responder,
		Peer:  "memory_window_requester",
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// The second half is lent. Messages are in separate memory.
	local, err := mmap.Alloc(dev, 2*sample.Room, mmap.LocalReadWrite|mmap.BindWindows)
	if err != nil {
		return err
	}
	message, err := mmap.Alloc(dev, sample.Room, mmap.LocalReadWrite)
	if err != nil {
		return err
	}

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	windows, err := r.WindowPool(1) // fails on a device without windows
	if err != nil {
		return err
	}
	sends, err := r.Pool(1, func(t *rdma.Task) { r.Fail(t.Free()) }, pe.FailContext)
	if err != nil {
		return err
	}
	var window *rdma.Window
	receives, err := r.ReceivePool(1,
		func(t *rdma.ReceiveTask) { // the peer has returned it
			r.Fail(window.Free()) // revokes the window in any case
			r.Fail(s.Show(local.Bytes()[sample.Room:], "was written: %s"))
			r.Fail(t.Free())
			s.Peer.Done(nil) // the context ends with the peer
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	var conn *rdma.Connection
	lend := func() error {
		if window, err = windows.Alloc(conn); err != nil {
			return err
		}
		if err := window.Bind(local, sample.Room, sample.Room, mmap.RemoteWrite, func(err error) { r.Fail(err) }); err != nil {
			return err
		}
		desc, err := window.Export()
		if err != nil {
			return err
		}
		copy(message.Bytes(), desc)
		task, err := sends.Send(conn, bufinv.Source(message, 0, len(desc)))
		return pe.SubmitOrFree(task, err)
	}
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting:
			task, err := receives.Alloc(nil)
			r.Fail(pe.SubmitOrFree(task, err))
			s.Peer.Connect(r, func(c *rdma.Connection, _ *mmap.Map, err error) { conn = c; r.Fail(err) })
		case pe.Running: // both ends have connected
			r.Fail(lend())
		}
	})
	r.Fail(r.Start())      // Fail(nil) does nothing
	return engine.Run(ctx) // until the context is Idle
}
