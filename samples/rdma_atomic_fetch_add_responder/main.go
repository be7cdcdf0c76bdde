// Command rdma_atomic_fetch_add_responder lets its peer,
// rdma_atomic_fetch_add_requester, add to a 64-bit value in its memory with RDMA
// fetch-and-adds. It submits no task: it exports the memory, and the device
// operates on it. Both the memory and the RDMA context have to permit atomics.
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
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	p := &responder{initial: 1}
	sample.Main(sample.Program{
		Name:   "rdma_atomic_fetch_add_responder",
		About:  "Lets rdma_atomic_fetch_add_requester operate on a 64-bit value in its memory.",
		Role:   sample.Responder,
		Peer:   "rdma_atomic_fetch_add_requester",
		Memory: sample.ExportsMemory,
		Flags:  func(f *sample.Flags) { f.Uint64(&p.initial, "", "value", "N", "the value at the beginning") },
	}, p.run)
}

type responder struct {
	*sample.Session
	initial uint64
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Context
	local   *mmap.Map
	word    *uint64 // in local
}

func (p *responder) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)

	// The value that the peer operates on, at an address that is a multiple of 8.
	if p.local, err = mmap.Alloc(p.dev, 8, mmap.LocalReadWrite|mmap.RemoteAtomic); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)
	p.word = (*uint64)(unsafe.Pointer(unsafe.SliceData(p.local.Bytes())))
	atomic.StoreUint64(p.word, p.initial)

	// The engine, and the RDMA context on it.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		Engine:         p.engine,
		GIDIndex:       s.GIDIndex,
		MTU:            s.MTU,
		ConnectTimeout: s.ConnectTimeout,
		AckTimeout:     s.AckTimeout,
		Permissions:    mmap.RemoteAtomic,
		Log:            s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	p.Peer.EndWith(p.rdma)

	// What its callbacks need is in p: they are its methods.
	p.rdma.OnStateChange(p.stateChanged)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

func (p *responder) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.serve()
	}
}

// connect makes the connection with the peer, which gets the descriptor of our memory. The
// context is Running once both ends have connected.
func (p *responder) connect() {
	p.Peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) }, p.local)
}

// serve waits while the peer operates on the value.
func (p *responder) serve() {
	p.Print("before: %d", p.initial)
	p.Peer.Done(func(err error) {
		if err == nil {
			p.Print("after: %s", sample.Word(atomic.LoadUint64(p.word)))
		}
		p.rdma.Fail(err)
		p.rdma.Stop()
	})
}
