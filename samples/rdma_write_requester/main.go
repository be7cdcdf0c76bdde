// Command rdma_write_requester writes to the memory of its peer,
// rdma_write_responder, with one RDMA write. The peer submits nothing and does not
// notice: it only exports its memory. Here the descriptor of that memory is
// imported, and becomes the destination of the task.
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
		Name:   "rdma_write_requester",
		About:  "Writes to the memory of rdma_write_responder with an RDMA write.",
		Role:   sample.Requester,
		Peer:   "rdma_write_responder",
		Memory: sample.ImportsMemory,
		Text:   &sample.Text{Short: "w", Long: "write-string", Default: "Hello from the write requester!"},
		Sized:  true,
		Lists:  true,
	}, run)
}

type requester struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	writes *rdma.WritePool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	remote *mmap.Map
	conn   *rdma.Connection
	data   []byte        // what is written
	parts  []sample.Part // of the data, a task each: one, unless it is long
	left   int           // tasks that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &requester{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpWrite); err != nil {
		return err
	}

	// Memory for what is written. The peer does not reach it, so it is not exported.
	p.data = s.Payload()
	if p.local, err = mmap.Alloc(p.dev, max(len(p.data), 1), mmap.LocalReadWrite); err != nil {
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
	p.parts = s.Parts(len(p.data), int(p.rdma.Capabilities().MaxMessage))
	if p.writes, err = p.rdma.WritePool(len(p.parts), p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(len(p.parts) * (s.SGE + 1)); err != nil {
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
		p.rdma.Fail(p.write())
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

// write submits the tasks, all at once. The data goes to the beginning of the
// peer's memory.
func (p *requester) write() (err error) {
	n := len(p.data)
	if n > p.remote.Len() {
		return fmt.Errorf("there are %d bytes to be written, the peer's memory has %d: give it -size %d", n, p.remote.Len(), n)
	}
	var tasks []*rdma.WriteTask
	for _, part := range p.parts {
		task, err := p.task(part)
		if err != nil {
			p.rdma.Fail(rdma.FreeAll(tasks))
			return err
		}
		tasks = append(tasks, task)
	}
	p.left, err = rdma.SubmitAll(tasks, 0)
	p.rdma.Fail(rdma.FreeAll(tasks[p.left:]))
	p.Log.Info().Int("bytes", n).Int("tasks", p.left).Msg("write submitted")
	return err
}

// task makes a task that writes a part of the data, out of a list of buffers.
func (p *requester) task(part sample.Part) (*rdma.WriteTask, error) {
	src, err := sample.Load(p.bufs, p.local, part, p.SGE, p.data)
	if err != nil {
		return nil, err
	}
	task, err := p.writes.Alloc(p.conn, src, sample.Chain(p.bufs, p.remote, part, 1))
	if err != nil {
		return nil, err
	}
	task.SetUserData(&p.left)
	return task, nil
}

func (p *requester) done(t *rdma.WriteTask) {
	if p.left == 1 && p.rdma.Err() == nil {
		p.Print("written: %s", sample.Describe(p.data))
	}
	p.finish(t)
}

func (p *requester) failed(t *rdma.WriteTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a task, and its buffers with it, and stops the context after the
// last one.
func (p *requester) finish(t *rdma.WriteTask) {
	left := t.UserData().(*int)
	*left--
	p.rdma.Fail(t.Free())
	if *left == 0 {
		p.rdma.Stop()
	}
}
