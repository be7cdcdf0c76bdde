// Command rdma_atomic_cmp_swp_requester changes a 64-bit value in the memory of its peer,
// rdma_atomic_cmp_swp_responder, with an RDMA compare-and-swap, which replaces the value, in
// one atomic step, if it is the expected one. Either way the task returns the previous value.
// The task is submitted twice: the first swap succeeds; the second fails, and so returns the
// value that the first one stored.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	compare, swap := uint64(1), uint64(0xd0ca)
	sample.Main(sample.Program{
		Name:   "rdma_atomic_cmp_swp_requester",
		About:  "Changes a 64-bit value of rdma_atomic_cmp_swp_responder with compare-and-swap.",
		Role:   sample.Requester,
		Peer:   "rdma_atomic_cmp_swp_responder",
		Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&compare, "", "compare", "number", "the value expected at the peer")
			f.Uint64(&swap, "", "swap", "number", "the value to replace it with")
		},
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, compare, swap) })
}

func run(ctx context.Context, s *sample.Session, compare, swap uint64) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpCompareSwap); err != nil {
		return err
	}

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		EndWithLastConnection: true}) // the context ends with its peer
	if err != nil {
		return err
	}

	// One task, for both operations. After the second, the task and its buffers are freed.
	first, now := true, uint64(0)
	atomics, err := r.Pool(1,
		func(t *rdma.Task) {
			old := t.Original()
			s.Print("found %d, expected %d: swapped %t", old, compare, old == compare)
			if first {
				if first, now = false, old; old == compare {
					now = swap
				}
				r.Fail(pe.SubmitOrFree(t, nil)) // Fail(nil) does nothing
				return
			}
			if old == now {
				s.Print("left: %s", sample.Word(old))
			} else {
				r.Fail(fmt.Errorf("the value is %d, want %d", old, now))
			}
			r.Fail(t.Free())
			r.Stop()
		},
		pe.FailContext)
	if err != nil {
		return err
	}

	var conn *rdma.Connection
	var remote *mmap.Map
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors
			s.Peer.Connect(r, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; r.Fail(err) })
		case pe.Running: // both ends have connected
			task, err := atomics.CompareSwap(conn, bufinv.Target(remote, 0, 8), compare, swap)
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
