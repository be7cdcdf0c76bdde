// Command rdma_receive_immediate receives a message with a 32-bit immediate value from its
// peer, rdma_send_immediate. The context posts the receive and its buffer by itself, before
// it connects. A message that does not fit fails.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:  "rdma_receive_immediate",
		About: "Receives a message with immediate from rdma_send_immediate.",
		Role:  sample.Responder,
		Peer:  "rdma_send_immediate",
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	if err := rdma.Supports(dev, rdma.OpReceive); err != nil {
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

	// One receive, in the context's own memory, which the peer cannot access.
	err = r.Receive(1, sample.Room, func(m *rdma.Message) {
		if imm, _ := m.Imm(); m.Opcode() == rdma.ReceivedSendImm {
			r.Fail(s.Show(m.Bytes(), "received: %s, immediate %#08x", imm)) // Fail(nil) does nothing
		} else {
			r.Fail(fmt.Errorf("expected a send with immediate, received a %v", m.Opcode()))
		}
		// The peer's device may still repeat a message whose acknowledgement was lost, and
		// only an open connection acknowledges it again: stop when the peer has ended.
		s.Peer.Done(nil) // the context ends with it
	})
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Starting { // exchange descriptors
			s.Peer.Connect(r, nil) // an error ends the context
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
