// Command rdma_send sends a message to its peer, rdma_receive. The peer chooses the buffer for
// the message by submitting a receive. Neither side knows an address of the other.
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
		Name:  "rdma_send",
		About: "Sends a message to rdma_receive.",
		Role:  sample.Requester,
		Peer:  "rdma_receive",
		Text:  &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpSend); err != nil {
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
			s.Print("sending: %s", sample.Describe(text))
			task, err := sends.Send(conn, bufinv.Source(local, 0, len(text)))
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
