// Command rdma_send sends a message to its peer, rdma_receive. The message goes to a
// buffer that the peer has chosen, by submitting a receive; neither knows an
// address of the other.
package main

import (
	"context"

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
		Name:  "rdma_send",
		About: "Sends a message to rdma_receive.",
		Role:  sample.Requester,
		Peer:  "rdma_receive",
		Text:  &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
		Sized: true,
		Lists: true,
	}, run)
}

type sender struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	sends  *rdma.SendPool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	conn   *rdma.Connection
	data   []byte        // the message
	parts  []sample.Part // of the message, a task each: one, unless it is long
	left   int           // tasks that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &sender{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpSend); err != nil {
		return err
	}

	// Memory for the message. The peer does not reach it, so it is not exported.
	p.data = s.Payload()
	p.parts = s.Parts(len(p.data), sample.MaxMessage)
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
	if p.sends, err = p.rdma.SendPool(len(p.parts), p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(len(p.parts) * s.SGE); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	return p.engine.Run(ctx)
}

func (p *sender) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.rdma.Fail(p.send())
	}
}

// connect makes the connection with the peer. The context is Running once both ends have
// connected.
func (p *sender) connect() {
	p.Peer.Connect(p.rdma, func(conn *rdma.Connection, _ *mmap.Map, err error) {
		p.conn = conn
		p.rdma.Fail(err)
	})
}

// send submits the tasks, all at once.
func (p *sender) send() error {
	var tasks []*rdma.SendTask
	for _, part := range p.parts {
		task, err := p.task(part)
		if err != nil {
			p.rdma.Fail(rdma.FreeAll(tasks))
			return err
		}
		tasks = append(tasks, task)
	}
	p.Print("sending: %s", sample.Describe(p.data))
	n, err := rdma.SubmitAll(tasks, 0)
	p.left = n
	p.rdma.Fail(rdma.FreeAll(tasks[n:]))
	return err
}

// task makes a task that sends a part of the message, out of a list of buffers.
func (p *sender) task(part sample.Part) (*rdma.SendTask, error) {
	src, err := sample.Load(p.bufs, p.local, part, p.SGE, p.data)
	if err != nil {
		return nil, err
	}
	task, err := p.sends.Alloc(p.conn, src)
	if err != nil {
		return nil, err
	}
	task.SetUserData(&p.left)
	return task, nil
}

func (p *sender) done(t *rdma.SendTask) {
	p.Log.Info().Msg("the message was sent")
	p.finish(t)
}

func (p *sender) failed(t *rdma.SendTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a task, and its buffers with it, and stops the context after the
// last one.
func (p *sender) finish(t *rdma.SendTask) {
	left := t.UserData().(*int)
	*left--
	p.rdma.Fail(t.Free())
	if *left == 0 {
		p.rdma.Stop()
	}
}
