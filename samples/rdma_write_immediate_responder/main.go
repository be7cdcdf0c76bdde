// Command rdma_write_immediate_responder lets its peer, rdma_write_immediate_requester, write
// to its memory. The write consumes a receive, whose completion reports the write and has a
// 32-bit immediate value. The receive needs no buffer, since the data goes to the exported
// memory. The context posts it by itself, before it connects.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_write_immediate_responder",
		About:  "Lets rdma_write_immediate_requester write to its memory, and takes its immediate value.",
		Role:   sample.Responder,
		Peer:   "rdma_write_immediate_requester",
		Memory: sample.ExportsMemory,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpReceive); err != nil {
		return err
	}

	// The memory that the peer may write to.
	local, err := mmap.Alloc(dev, sample.Room, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		Permissions: mmap.RemoteWrite})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	// One receive, without a buffer.
	err = r.Receive(1, 0, func(m *rdma.Message) {
		if imm, _ := m.Imm(); m.Opcode() == rdma.ReceivedWriteImm {
			r.Fail(s.Show(local.Bytes()[:m.Length()], "was written: %s, immediate %#08x", imm)) // Fail(nil) does nothing
		} else {
			r.Fail(fmt.Errorf("expected a write with immediate, received a %v", m.Opcode()))
		}
		// The peer's device may still repeat a write whose acknowledgement was lost, and
		// only an open connection acknowledges it again: stop when the peer has ended.
		s.Peer.Done(nil) // the context ends with it
	})
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Starting { // exchange descriptors: the peer gets the memory's
			s.Peer.Connect(r, nil, local) // an error ends the context
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
