// Command memory_window_requester writes to memory that its peer, memory_window_responder,
// lends it, and returns it. A message brings the descriptor of the memory window, which is imported
// as a memory map's is. After the write, a send with invalidate revokes the
// window at the peer.
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
		Name:  "memory_window_requester",
		About: "Writes to memory that memory_window_responder lends, then returns it.",
		Role:  sample.Requester,
		Peer:  "memory_window_responder",
		Text:  &sample.Text{Short: "w", Long: "write-string", Default: "Hello through the window!"},
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// Memory for the data to write, and for the peer's message.
	text := s.Payload()
	local, err := mmap.Alloc(dev, len(text)+sample.Room, mmap.LocalReadWrite)
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
	writes, err := r.Pool(1,
		func(t *rdma.Task) {
			s.Print("written: %s", sample.Describe(text))
			r.Fail(t.Free()) // Fail(nil) does nothing
		},
		pe.FailContext)
	if err != nil {
		return err
	}
	sends, err := r.Pool(1,
		func(t *rdma.Task) { // the last step
			r.Fail(t.Free())
			r.Stop()
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	// The write, and then the send that returns the window.
	use := func(conn *rdma.Connection, desc []byte) error {
		remote, err := mmap.Import(dev, desc)
		if err != nil {
			return err
		}
		write, err := writes.Write(conn, bufinv.Source(local, 0, len(text)), bufinv.Target(remote, 0, len(text)))
		if err := pe.SubmitOrFree(write, err); err != nil {
			return err
		}
		send, err := sends.Send(conn, nil)
		if err == nil {
			err = send.SetInvalidate(remote)
		}
		return pe.SubmitOrFree(send, err)
	}
	receives, err := r.ReceivePool(1,
		func(t *rdma.ReceiveTask) {
			r.Fail(use(t.Connection(), t.Destination().Bytes()))
			r.Fail(t.Free())
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Starting { // the receive is posted before the connection is made
			task, err := receives.Alloc(bufinv.Target(local, len(text), sample.Room))
			r.Fail(pe.SubmitOrFree(task, err))
			s.Peer.Connect(r, nil) // exchange descriptors
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
