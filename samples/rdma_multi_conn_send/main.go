// Command rdma_multi_conn_send sends one message over each of several connections to its peer,
// rdma_multi_conn_receive. All connections belong to one RDMA context, and all tasks come from
// one pool; each task names its connection. The descriptors of the connections travel
// together, in order.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:           "rdma_multi_conn_send",
		About:          "Sends a message to rdma_multi_conn_receive over each of several connections.",
		Role:           sample.Requester,
		Peer:           "rdma_multi_conn_receive",
		Text:           &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
		MaxConnections: 8,
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
		MaxConnections: s.Connections, EndWithLastConnection: true}) // the context ends with its peer
	if err != nil {
		return err
	}

	// A task for each connection. The context ends with the last one, or the first that fails.
	sends, err := r.Pool(s.Connections,
		func(t *rdma.Task) {
			s.Log.Info().Msgf("the message on connection %d was sent", t.Connection().ID())
			r.Fail(t.Free()) // and its buffer; Fail(nil) does nothing
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	var a *oob.Answer
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors; each end connects to the one of the same number
			s.ConnectAll(ctx, r, func(got *oob.Answer, err error) { a = got; r.Fail(err) })
		case pe.Running: // all have connected, at both ends
			for i, conn := range a.Connections { // they all send the same memory
				s.Print("sending on connection %d: %s", i, sample.Describe(text))
				task, err := sends.Send(conn, bufinv.Source(local, 0, len(text)))
				r.Fail(pe.SubmitOrFree(task, err))
			}
			r.Fail(r.StopWhenDone())
		}
	})
	r.Fail(r.Start())      // Fail(nil) does nothing
	return engine.Run(ctx) // until the context is Idle
}
