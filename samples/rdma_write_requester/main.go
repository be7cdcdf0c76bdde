// Command rdma_write_requester writes to the memory of its peer, rdma_write_responder,
// with one RDMA write. The peer submits nothing and does not notice: it only exports its
// memory, whose descriptor is imported here and becomes the destination of the task.
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
		Name:   "rdma_write_requester",
		About:  "Writes to the memory of rdma_write_responder with an RDMA write.",
		Role:   sample.Requester,
		Peer:   "rdma_write_responder",
		Memory: sample.ImportsMemory,
		Text:   &sample.Text{Short: "w", Long: "write-string", Default: "Hello from the write requester!"},
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpWrite); err != nil {
		return err
	}

	// Memory for the data. It is not exported, since the peer does not access it.
	text := s.Payload()
	local, err := mmap.Alloc(dev, len(text), mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	copy(local.Bytes(), text)

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		EndWithLastConnection: true}) // the context ends with its peer
	if err != nil {
		return err
	}

	// One task. Either callback frees it, and its buffers with it, and ends the context.
	writes, err := r.Pool(1,
		func(t *rdma.Task) {
			s.Print("written: %s", sample.Describe(text))
			r.Fail(t.Free()) // Fail(nil) does nothing
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
			if len(text) > remote.Len() {
				r.Fail(fmt.Errorf("cannot write %d bytes: the peer's memory has only %d", len(text), remote.Len()))
				return
			}
			task, err := writes.Write(conn, bufinv.Source(local, 0, len(text)), bufinv.Target(remote, 0, len(text)))
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
