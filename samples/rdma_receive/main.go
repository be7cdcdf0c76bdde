// Command rdma_receive receives a message from its peer, rdma_send: it submits a receive with
// a buffer, and the message goes there. A message that arrives before the receive waits for
// it. A message that does not fit fails.
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
		Name:  "rdma_receive",
		About: "Receives a message from rdma_send.",
		Role:  sample.Responder,
		Peer:  "rdma_send",
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

	// Memory for the message. It is not exported, since the peer does not access it.
	local, err := mmap.Alloc(dev, sample.Room, mmap.LocalReadWrite)
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

	// One task. Either callback frees it, and its buffer with it, and ends the context.
	receives, err := r.ReceivePool(1,
		func(t *rdma.ReceiveTask) {
			r.Fail(s.Show(t.Destination().Bytes(), "received: %s")) // Fail(nil) does nothing
			r.Fail(t.Free())
			// The peer's device may still repeat a message whose acknowledgement was lost, and
			// only an open connection acknowledges it again: stop when the peer has ended.
			s.Peer.Done(nil) // the context ends with it
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next != pe.Starting {
			return
		}
		// The receive is posted before the connection is made, so that no message precedes it.
		task, err := receives.Alloc(bufinv.Target(local, 0, local.Len()))
		r.Fail(pe.SubmitOrFree(task, err))
		s.Peer.Connect(r, nil) // exchange descriptors
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
