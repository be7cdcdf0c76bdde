// Command rdma_write_immediate_requester writes to rdma_write_immediate_responder with one
// RDMA write and a 32-bit immediate value. The data goes straight to the peer's memory. The
// value completes a receive of the peer, which reports that the data is there.
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
	imm := uint32(0xd0ca)
	sample.Main(sample.Program{
		Name:   "rdma_write_immediate_requester",
		About:  "Writes to the memory of rdma_write_immediate_responder with an RDMA write with immediate.",
		Role:   sample.Requester,
		Peer:   "rdma_write_immediate_responder",
		Memory: sample.ImportsMemory,
		Text:   &sample.Text{Short: "w", Long: "write-string", Default: "Hello from the write requester!"},
		Flags:  func(f *sample.Flags) { f.Uint32(&imm, "i", "immediate", "number", "the immediate value") },
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, imm) })
}

func run(ctx context.Context, s *sample.Session, imm uint32) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpWriteImm); err != nil {
		return err
	}

	// Memory for the data. It is not exported, since the peer does not access it.
	text := s.Payload()
	local, err := mmap.Alloc(dev, len(text), mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	copy(local.Bytes(), text)

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
			s.Print("written: %s, immediate %#08x", sample.Describe(text), t.Imm())
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
			task, err := writes.WriteImm(conn, bufinv.Source(local, 0, len(text)), bufinv.Target(remote, 0, len(text)), imm)
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
