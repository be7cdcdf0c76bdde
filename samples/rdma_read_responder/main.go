// Command rdma_read_responder lets its peer, rdma_read_requester, read its memory. It submits
// no task: it exports the memory, and the device answers the peer by itself. Both the memory
// and the RDMA context have to permit reads. RDMA does not report when the peer has finished:
// the peer reports that over the channel that carried the descriptors.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_read_responder",
		About:  "Lets rdma_read_requester read its memory.",
		Role:   sample.Responder,
		Peer:   "rdma_read_requester",
		Memory: sample.ExportsMemory,
		Text:   &sample.Text{Short: "r", Long: "read-string", Default: "Hello from the read responder!"},
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// The memory that the peer may read.
	text := s.Payload()
	local, err := mmap.Alloc(dev, len(text), mmap.LocalReadWrite|mmap.RemoteRead)
	if err != nil {
		return err
	}
	copy(local.Bytes(), text)

	// The engine, and the RDMA context on it. It has no tasks.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		Permissions: mmap.RemoteRead})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors: the peer gets the memory's
			s.Peer.Connect(r, nil, local) // an error ends the context
		case pe.Running: // the peer reads now
			s.Print("offered: %s", sample.Describe(text))
			s.Peer.Done(nil) // the context ends with it
		}
	})
	r.Fail(r.Start())      // Fail(nil) does nothing
	return engine.Run(ctx) // until the context is Idle
}
