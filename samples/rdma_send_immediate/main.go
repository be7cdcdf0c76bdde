// Command rdma_send_immediate sends a message with a 32-bit immediate value to its peer,
// rdma_receive_immediate. The peer's receive has the buffer for the message. Neither side
// knows an address of the other. The peer gets the value in the completion, beside the data.
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
	imm := uint32(0xd0ca)
	sample.Main(sample.Program{
		Name:  "rdma_send_immediate",
		About: "Sends a message with immediate to rdma_receive_immediate.",
		Role:  sample.Requester,
		Peer:  "rdma_receive_immediate",
		Text:  &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
		Flags: func(f *sample.Flags) { f.Uint32(&imm, "i", "immediate", "number", "the immediate value") },
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, imm) })
}

func run(ctx context.Context, s *sample.Session, imm uint32) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpSendImm); err != nil {
		return err
	}

	// Memory for the message. It is not exported, since the peer does not access it.
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

	// One task. Either callback frees it, and its buffer with it, and ends the context.
	sends, err := r.Pool(1,
		func(t *rdma.Task) {
			s.Log.Info().Msg("the message was sent")
			r.Fail(t.Free()) // Fail(nil) does nothing
			r.Stop()
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	var conn *rdma.Connection
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors
			s.Peer.Connect(r, func(c *rdma.Connection, _ *mmap.Map, err error) { conn = c; r.Fail(err) })
		case pe.Running: // both ends have connected
			s.Print("sending: %s, immediate %#08x", sample.Describe(text), imm)
			task, err := sends.SendImm(conn, bufinv.Source(local, 0, len(text)), imm)
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
