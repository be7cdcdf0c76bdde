// Command rdma_read_requester reads the memory of its peer, rdma_read_responder, with one
// RDMA read. The peer submits nothing and does not notice: it only exports its memory,
// whose descriptor is imported here and becomes the source of the task.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_read_requester",
		About:  "Reads the memory of rdma_read_responder with an RDMA read.",
		Role:   sample.Requester,
		Peer:   "rdma_read_responder",
		Memory: sample.ImportsMemory,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpRead); err != nil {
		return err
	}

	// Memory for the data. It is not exported, since the peer does not access it.
	local, err := mmap.Alloc(dev, sample.Room, mmap.LocalReadWrite)
	if err != nil {
		return err
	}

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		EndWithLastConnection: true}) // the context ends with its peer
	if err != nil {
		return err
	}

	// One task. Either callback frees it, and its buffers with it, and ends the context.
	reads, err := r.Pool(1,
		func(t *rdma.Task) {
			r.Fail(s.Show(t.Destination().Bytes(), "read: %s")) // Fail(nil) does nothing
			r.Fail(t.Free())
			r.Stop()
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	var conn *rdma.Connection
	var remote *mmap.Map
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors
			s.Peer.Connect(r, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; r.Fail(err) })
		case pe.Running: // both ends have connected
			if remote.Len() > local.Len() {
				r.Fail(fmt.Errorf("the peer's memory has %d bytes, the local memory only %d", remote.Len(), local.Len()))
				return
			}
			task, err := reads.Read(conn, bufinv.Source(remote, 0, remote.Len()), bufinv.Target(local, 0, local.Len()))
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
