// Command rdma_read_requester reads the memory of its peer, rdma_read_responder,
// with one RDMA read. The peer submits nothing and does not notice: it only exports
// its memory. Here the descriptor of that memory is imported, and becomes
// the source of the task; what has been read is checked and printed.
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
	sample.Main(sample.Program{
		Name:   "rdma_read_requester",
		About:  "Reads the memory of rdma_read_responder with an RDMA read.",
		Role:   sample.Requester,
		Peer:   "rdma_read_responder",
		Memory: sample.ImportsMemory,
		Sized:  true,
		Lists:  true,
	}, run)
}

type requester struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	reads  *rdma.ReadPool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	remote *mmap.Map
	conn   *rdma.Connection
	limit  int    // the most that one task reads, bytes
	data   []byte // what has been read
	left   int    // tasks that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &requester{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpRead); err != nil {
		return err
	}

	// Memory for what is read. The peer does not reach it, so it is not exported.
	if p.local, err = mmap.Alloc(p.dev, max(s.Capacity(), 1), mmap.LocalReadWrite); err != nil {
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
		MaxSendSGE:            s.SGE,
		Log:                   s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)

	// What its callbacks need is in p: they are its methods.
	p.limit = int(p.rdma.Capabilities().MaxMessage)
	tasks := sample.Tasks(s.Capacity(), p.limit)
	if p.reads, err = p.rdma.ReadPool(tasks, p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(tasks * (s.SGE + 1)); err != nil {
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
		p.rdma.Fail(p.read())
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

// read submits tasks that read all of the peer's memory, all at once: one, unless
// it is large.
func (p *requester) read() (err error) {
	n := p.remote.Len()
	switch room := p.Capacity(); {
	case room == 0:
		n = 0 // memory has a byte at least
	case n > room:
		return fmt.Errorf("the peer's memory has %d bytes, there is room for %d: give -size %d", n, room, n)
	}
	var tasks []*rdma.ReadTask
	for _, part := range p.Parts(n, p.limit) {
		task, err := p.task(part)
		if err != nil {
			p.rdma.Fail(rdma.FreeAll(tasks))
			return err
		}
		tasks = append(tasks, task)
	}
	p.left, err = rdma.SubmitAll(tasks, 0)
	p.rdma.Fail(rdma.FreeAll(tasks[p.left:]))
	p.Log.Info().Int("bytes", n).Int("tasks", p.left).Msg("read submitted")
	return err
}

// task makes a task that reads a part of the memory, into a list of buffers.
func (p *requester) task(part sample.Part) (*rdma.ReadTask, error) {
	var src *bufinv.Buf
	if part.Len > 0 {
		src = p.bufs.Source(p.remote, part.Off, part.Len)
	}
	task, err := p.reads.Alloc(p.conn, src, sample.Chain(p.bufs, p.local, part, p.SGE))
	if err != nil {
		return nil, err
	}
	task.SetUserData(&p.left)
	return task, nil
}

// done runs in the order of submission.
func (p *requester) done(t *rdma.ReadTask) {
	p.data = t.Destination().AppendBytes(p.data)
	if p.left == 1 && p.rdma.Err() == nil {
		p.rdma.Fail(p.show())
	}
	p.finish(t)
}

// show checks and prints what has been read.
func (p *requester) show() error {
	data, err := p.Verify(p.data)
	if err != nil {
		return err
	}
	p.Print("read: %s", sample.Describe(data))
	return nil
}

func (p *requester) failed(t *rdma.ReadTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a task, and its buffers with it, and stops the context after the
// last one.
func (p *requester) finish(t *rdma.ReadTask) {
	left := t.UserData().(*int)
	*left--
	p.rdma.Fail(t.Free())
	if *left == 0 {
		p.rdma.Stop()
	}
}
