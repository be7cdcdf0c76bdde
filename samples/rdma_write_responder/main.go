// Command rdma_write_responder lets its peer, rdma_write_requester, write to its memory. It
// submits no task: it exports the memory, which has to permit writes, and the device takes the
// data by itself. RDMA does not report when the peer has finished: the peer reports that over
// the channel that carried the descriptors. The program reads the memory only then.
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
		Name:   "rdma_write_responder",
		About:  "Lets rdma_write_requester write to its memory.",
		Role:   sample.Responder,
		Peer:   "rdma_write_requester",
		Memory: sample.ExportsMemory,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// The memory that the peer may write to.
	local, err := mmap.Alloc(dev, sample.Room, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}

	// The engine, and the RDMA context on it. It has no tasks.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		Permissions: mmap.RemoteWrite})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors: the peer gets the memory's
			s.Peer.Connect(r, nil, local) // an error ends the context
		case pe.Running: // the peer writes now
			s.Peer.Done(func(err error) {
				if err == nil {
					err = s.Show(local.Bytes(), "was written: %s")
				}
				r.Fail(err) // Fail(nil) does nothing
				r.Stop()
			})
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
