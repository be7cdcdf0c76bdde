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
	left   int // tasks that have not completed
	err    error
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

	// Memory with the message. The peer does not reach it, so it is not exported.
	payload := s.Payload()
	if p.local, err = mmap.Alloc(p.dev, len(payload), mmap.LocalReadWrite); err != nil {
		return err
	}
	defer sample.Close(&err, p.local.Close)
	copy(p.local.Bytes(), payload)

	// The engine, and the RDMA context on it.
	if p.engine, err = pe.New(pe.Config{Log: s.Log}); err != nil {
		return err
	}
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{GIDIndex: s.GIDIndex, Log: s.Log})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	if err := p.engine.Connect(p.rdma); err != nil {
		return err
	}

	// What its callbacks need is in p: they are its methods.
	if p.sends, err = p.rdma.SendPool(1, p.done, p.failed); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if p.bufs, err = bufinv.New(1); err != nil {
		return err
	}
	defer sample.Close(&err, p.bufs.Close)

	// From here on everything happens in callbacks, until the context is Idle.
	if err := p.rdma.Start(); err != nil {
		return err
	}
	if err := p.engine.Run(ctx); err != nil {
		return err
	}
	if p.err == nil {
		p.err = p.rdma.Err()
	}
	return p.err
}

func (p *sender) stateChanged(prev, next pe.State) {
	p.Log.Info().Msgf("the context is %v", next)
	switch next {
	case pe.Starting:
		p.fail(p.connect())
	case pe.Running:
		p.fail(p.send())
	}
}

// connect gives the peer our descriptor and takes its own. The context is Running
// once both ends have connected.
func (p *sender) connect() error {
	conn, desc, err := p.rdma.Export()
	if err != nil {
		return err
	}
	p.conn = conn
	ours := sample.Descriptors{Connections: [][]byte{desc}}
	p.Exchange(p.engine, ours, func(theirs sample.Descriptors, err error) {
		if err == nil {
			err = conn.Connect(theirs.Connections[0])
		}
		p.fail(err)
	})
	return nil
}

// send submits a task that sends all of our memory.
func (p *sender) send() error {
	task, err := p.sends.Alloc(p.conn, p.bufs.Source(p.local, 0, p.local.Len()))
	if err != nil {
		return err
	}
	p.left = 1
	task.SetUserData(&p.left)
	p.Print("sending: %s", sample.Describe(task.Source().Bytes()))
	if err := task.Submit(); err != nil {
		p.fail(task.Free())
		return err
	}
	return nil
}

func (p *sender) done(t *rdma.SendTask) {
	p.Log.Info().Msg("the message was sent")
	p.finish(t)
}

func (p *sender) failed(t *rdma.SendTask, err error) {
	p.fail(err)
	p.finish(t)
}

// finish frees a task, and its buffers with it, and stops the context after the
// last one.
func (p *sender) finish(t *rdma.SendTask) {
	left := t.UserData().(*int)
	*left--
	p.fail(t.Free())
	if *left == 0 {
		p.rdma.Stop()
	}
}

// fail keeps the first error, and stops the context.
func (p *sender) fail(err error) {
	if err == nil {
		return
	}
	if p.err == nil {
		p.err = err
	}
	p.rdma.Stop()
}
