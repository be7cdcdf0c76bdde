// Command rdma_atomic_cmp_swp_responder lets its peer, rdma_atomic_cmp_swp_requester, change
// a 64-bit value in its memory with RDMA compare-and-swap. It submits no task: it exports
// the memory, and the device operates on it. Both the memory and the RDMA context have to
// permit atomics.
package main

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	value := uint64(1)
	sample.Main(sample.Program{
		Name:   "rdma_atomic_cmp_swp_responder",
		About:  "Lets rdma_atomic_cmp_swp_requester operate on a 64-bit value in its memory.",
		Role:   sample.Responder,
		Peer:   "rdma_atomic_cmp_swp_requester",
		Memory: sample.ExportsMemory,
		Flags:  func(f *sample.Flags) { f.Uint64(&value, "", "value", "number", "the initial value") },
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, value) })
}

func run(ctx context.Context, s *sample.Session, value uint64) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// The value that the peer operates on, at an address that is a multiple of 8.
	local, err := mmap.Alloc(dev, 8, mmap.LocalReadWrite|mmap.RemoteAtomic)
	if err != nil {
		return err
	}
	word := (*uint64)(unsafe.Pointer(unsafe.SliceData(local.Bytes())))
	atomic.StoreUint64(word, value)

	// The engine, and the RDMA context on it. It has no tasks.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		Permissions: mmap.RemoteAtomic})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors: the peer gets the memory's
			s.Peer.Connect(r, nil, local) // an error ends the context
		case pe.Running: // the peer operates on the value now
			s.Print("before: %d", value)
			s.Peer.Done(func(err error) {
				if err == nil {
					s.Print("after: %s", sample.Word(atomic.LoadUint64(word)))
				}
				r.Fail(err) // Fail(nil) does nothing
				r.Stop()
			})
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
