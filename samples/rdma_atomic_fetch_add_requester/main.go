// Command rdma_atomic_fetch_add_requester adds to a 64-bit value in the memory of
// its peer, rdma_atomic_fetch_add_responder, with RDMA fetch-and-adds. Each returns
// the value that was there before, and adds to it, in one atomic step. One task does all additions: its callback submits it again.
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

// additions is how often the value is added.
const additions = 8

func main() {
	p := &requester{add: 5}
	sample.Main(sample.Program{
		Name:   "rdma_atomic_fetch_add_requester",
		About:  "Adds to a 64-bit value of rdma_atomic_fetch_add_responder with fetch-and-add.",
		Role:   sample.Requester,
		Peer:   "rdma_atomic_fetch_add_responder",
		Memory: sample.ImportsMemory,
		Flags: func(f *sample.Flags) {
			f.Uint64(&p.add, "", "add", "N", "the value to be added")
		},
	}, p.run)
}

type requester struct {
	*sample.Session
	add     uint64
	next    uint64 // the value that the next operation should find
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Context
	atomics *rdma.FetchAddPool
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
	if err := rdma.Supports(p.dev, rdma.OpFetchAdd); err != nil {
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
	if p.atomics, err = p.rdma.FetchAddPool(1, p.done, p.failed); err != nil {
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
	task, err := p.atomics.Alloc(p.conn, p.bufs.Target(p.remote, 0, 8), p.bufs.Target(p.local, 0, 8), p.add)
	if err != nil {
		return err
	}
	p.left = additions
	task.SetUserData(&p.left)
	if err := task.Submit(); err != nil {
		p.rdma.Fail(task.Free())
		return err
	}
	return nil
}

func (p *requester) done(t *rdma.FetchAddTask) {
	left := t.UserData().(*int)
	first := *left == additions
	*left--
	old := t.Original()
	if !first && old != p.next {
		p.rdma.Fail(fmt.Errorf("the value should have been %d, and was %d", p.next, old))
	}
	p.next = old + p.add
	p.Print("found %d, added %d", old, p.add)
	if *left > 0 && p.rdma.Err() == nil {
		// The same task again, with its result buffer emptied.
		err := t.Result().ResetData()
		if err == nil {
			err = t.Submit()
		}
		if err == nil {
			return
		}
		p.rdma.Fail(err)
	}
	if p.rdma.Err() == nil {
		p.Print("left: %s", sample.Word(p.next))
	}
	p.rdma.Fail(t.Free())
	p.rdma.Stop()
}

func (p *requester) failed(t *rdma.FetchAddTask, err error) {
	p.rdma.Fail(err)
	p.rdma.Fail(t.Free())
}
