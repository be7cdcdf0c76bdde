// Command rdma_atomic_cmp_swp_requester changes a 64-bit value in the memory of its
// peer, rdma_atomic_cmp_swp_responder, with an RDMA compare-and-swap: it is replaced
// if it is the expected one, in one atomic step. Either way the task returns the value
// that was there before. The task is submitted twice: the
// first one swaps, the second one cannot, and so shows what the first one left.
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
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	p := &requester{compare: 1, swap: 0xd0ca}
	sample.Main(sample.Program{
		Name:   "rdma_atomic_cmp_swp_requester",
		About:  "Changes a 64-bit value of rdma_atomic_cmp_swp_responder with compare-and-swap.",
		Role:   sample.Requester,
		Peer:   "rdma_atomic_cmp_swp_responder",
		Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&p.compare, "", "compare", "N", "the value that is expected at the peer")
			f.Uint64(&p.swap, "", "swap", "N", "the value that is to replace it")
		},
	}, p.run)
}

type requester struct {
	*sample.Session
	compare uint64
	swap    uint64
	now     uint64 // the value after the first operation
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Context
	atomics *rdma.CompareSwapPool
	bufs    *bufinv.Inventory
	local   *mmap.Map
	remote  *mmap.Map
	conn    *rdma.Connection
	left    int // operations that have not completed
}

func (p *requester) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpCompareSwap); err != nil {
		return err
	}

	// Memory for the result. The peer does not reach it, so it is not exported.
	if p.local, err = mmap.Alloc(p.dev, 8, mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)

	// The engine, and the RDMA context on it.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		EndWithLastConnection: true, // the program ends when its peer does
		Engine:                p.engine,
		GIDIndex:              s.GIDIndex,
		MTU:                   s.MTU,
		ConnectTimeout:        s.ConnectTimeout,
		AckTimeout:            s.AckTimeout,
		Log:                   s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)

	// What its callbacks need is in p: they are its methods.
	if p.atomics, err = p.rdma.CompareSwapPool(1, p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(2); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

func (p *requester) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.rdma.Fail(p.begin())
	}
}

// connect makes the connection with the peer, and takes the descriptor of its memory. The
// context is Running once both ends have connected.
func (p *requester) connect() {
	p.Peer.Connect(p.rdma, func(conn *rdma.Connection, remote *mmap.Map, err error) {
		p.conn, p.remote = conn, remote
		p.rdma.Fail(err)
	})
}

// begin submits the first operation.
func (p *requester) begin() (err error) {
	task, err := p.atomics.Alloc(p.conn, p.bufs.Target(p.remote, 0, 8), p.bufs.Target(p.local, 0, 8), p.compare, p.swap)
	if err != nil {
		return err
	}
	p.left = 2
	task.SetUserData(&p.left)
	if err := task.Submit(); err != nil {
		p.rdma.Fail(task.Free())
		return err
	}
	return nil
}

func (p *requester) done(t *rdma.CompareSwapTask) {
	left := t.UserData().(*int)
	*left--
	old := t.Original()
	p.Print("found %d, expected %d: swapped %t", old, p.compare, old == p.compare)
	if *left > 0 {
		if p.now = old; old == p.compare {
			p.now = p.swap
		}
		// The same task again, with its result buffer emptied.
		err := t.Result().ResetData()
		if err == nil {
			err = t.Submit()
		}
		if err == nil {
			return
		}
		p.rdma.Fail(err)
	} else if old == p.now {
		p.Print("left: %s", sample.Word(old))
	} else {
		p.rdma.Fail(fmt.Errorf("the value should be %d now, and is %d", p.now, old))
	}
	p.rdma.Fail(t.Free())
	p.rdma.Stop()
}

func (p *requester) failed(t *rdma.CompareSwapTask, err error) {
	p.rdma.Fail(err)
	p.rdma.Fail(t.Free())
}
