// Command rdma_write_responder lets its peer, rdma_write_requester, write to its
// memory. It submits no task: it exports the memory, and the device takes the data
// by itself. The memory map has to permit writes. RDMA does not report when the
// peer has finished: the peer says so the way that the descriptors went, and the
// memory is read only then.
package main

import (
	"context"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_write_responder",
		About:  "Lets rdma_write_requester write to its memory.",
		Role:   sample.Responder,
		Peer:   "rdma_write_requester",
		Memory: sample.ExportsMemory,
		Sized:  true,
	}, run)
}

type responder struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	local  *mmap.Map
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &responder{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)

	// The memory that the peer may write to.
	if p.local, err = mmap.Alloc(p.dev, max(s.Capacity(), 1), mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)

	// The engine, and the RDMA context on it.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		Engine:         p.engine,
		GIDIndex:       s.GIDIndex,
		MTU:            s.MTU,
		ConnectTimeout: s.ConnectTimeout,
		AckTimeout:     s.AckTimeout,
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

// serve waits while the peer writes, and looks at the memory then.
func (p *responder) serve() {
	p.Peer.Done(func(err error) {
		if err == nil {
			err = p.show()
		}
		p.rdma.Fail(err)
		p.rdma.Stop()
	})
}

func (p *responder) show() error {
	data, err := p.Verify(p.local.Bytes()[:p.Capacity()])
	if err != nil {
		return err
	}
	p.Print("was written: %s", sample.Describe(data))
	return nil
}
