// Command rdma_atomic_fetch_add_requester adds to a 64-bit value in the memory of its peer,
// rdma_atomic_fetch_add_responder, with RDMA fetch-and-adds. Each returns the previous value
// and adds to it in one atomic step. One task does all additions: its callback submits it
// again.
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

// additions is how many times the value is added.
const additions = 8

func main() {
	add := uint64(5)
	sample.Main(sample.Program{
		Name:   "rdma_atomic_fetch_add_requester",
		About:  "Adds to a 64-bit value of rdma_atomic_fetch_add_responder with fetch-and-add.",
		Role:   sample.Requester,
		Peer:   "rdma_atomic_fetch_add_responder",
		Memory: sample.ImportsMemory,
		Flags:  func(f *sample.Flags) { f.Uint64(&add, "", "add", "number", "the value to add") },
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, add) })
}

func run(ctx context.Context, s *sample.Session, add uint64) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it
	if err := rdma.Supports(dev, rdma.OpFetchAdd); err != nil {
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

	// One task, for all additions. After the last, the task and its buffers are freed.
	left, want := additions, uint64(0)
	atomics, err := r.Pool(1,
		func(t *rdma.Task) {
			old := t.Original()
			s.Print("found %d, added %d", old, add)
			if left < additions && old != want {
				r.Fail(fmt.Errorf("the value was %d, want %d", old, want))
			}
			want = old + add
			if left--; left > 0 && r.Err() == nil {
				r.Fail(pe.SubmitOrFree(t, nil)) // Fail(nil) does nothing
				return
			}
			if r.Err() == nil {
				s.Print("left: %s", sample.Word(want))
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
			task, err := atomics.FetchAdd(conn, bufinv.Target(remote, 0, 8), add)
			r.Fail(pe.SubmitOrFree(task, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
