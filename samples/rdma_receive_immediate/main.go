// Command rdma_receive_immediate receives a message with a 32-bit immediate value from
// its peer, rdma_send_immediate: it submits a receive with a buffer, and the
// message goes there. A message that comes before the receive waits for it. One
// that does not fit fails.
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
		Name:  "rdma_receive_immediate",
		About: "Receives a message with immediate from rdma_send_immediate.",
		Role:  sample.Responder,
		Peer:  "rdma_send_immediate",
		Sized: true,
		Lists: true,
	}, run)
}

type receiver struct {
	*sample.Session
	dev      verbs.Device
	engine   *pe.Engine
	rdma     *rdma.Context
	local    *mmap.Map
	receives *rdma.ReceivePool
	bufs     *bufinv.Inventory
	parts    []sample.Part // of the message, a receive each: one, unless it is long
	data     []byte        // what has been received
	left     int           // receives that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &receiver{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpReceive); err != nil {
		return err
	}

	// Memory for the message. The peer does not reach it, so it is not exported.
	p.parts = s.Parts(s.Capacity(), sample.MaxMessage)
	if p.local, err = mmap.Alloc(p.dev, max(s.Capacity(), 1), mmap.LocalReadWrite); err != nil {
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
		MaxRecvSGE:     s.SGE,
		Log:            s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	p.Peer.EndWith(p.rdma)

	// What its callbacks need is in p: they are its methods.
	if p.receives, err = p.rdma.ReceivePool(len(p.parts), p.done, p.failed); err != nil {
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

func (p *receiver) stateChanged(prev, next pe.State) {
	p.Entered(next)
	switch next {
	case pe.Starting:
		p.connect()
	case pe.Running:
		p.rdma.Fail(p.receive())
	}
}

// connect makes the connection with the peer. The context is Running once both ends have
// connected.
func (p *receiver) connect() {
	p.Peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
}

// receive submits the receives, all at once.
func (p *receiver) receive() error {
	var tasks []*rdma.ReceiveTask
	for _, part := range p.parts {
		task, err := p.receives.Alloc(sample.Chain(p.bufs, p.local, part, p.SGE))
		if err != nil {
			p.rdma.Fail(rdma.FreeAll(tasks))
			return err
		}
		task.SetUserData(&p.left)
		tasks = append(tasks, task)
	}
	n, err := rdma.SubmitAll(tasks, 0)
	p.left = n
	p.rdma.Fail(rdma.FreeAll(tasks[n:]))
	p.Log.Info().Int("room", p.Capacity()).Int("receives", n).Msg("receive submitted")
	return err
}

func (p *receiver) done(t *rdma.ReceiveTask) {
	p.rdma.Fail(p.show(t))
	p.finish(t)
}

// show keeps what has been received, and checks and prints it when it is all there.
func (p *receiver) show(t *rdma.ReceiveTask) error {
	imm, ok := t.Imm()
	if t.Opcode() != rdma.ReceivedSendImm || !ok {
		return fmt.Errorf("expected a send with immediate, received a %v", t.Opcode())
	}
	p.data = t.Destination().AppendBytes(p.data)
	if p.left > 1 {
		return nil
	}
	data, err := p.Verify(p.data)
	if err != nil {
		return err
	}
	p.Print("received: %s, immediate %#08x", sample.Describe(data), imm)
	return nil
}

func (p *receiver) failed(t *rdma.ReceiveTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a receive, and its buffer with it. After the last one it waits for
// the peer to end: its device may still repeat a message whose acknowledgement was
// lost, and only a connection that is open acknowledges it again.
func (p *receiver) finish(t *rdma.ReceiveTask) {
	left := t.UserData().(*int)
	*left--
	p.rdma.Fail(t.Free())
	if *left > 0 || p.rdma.Err() != nil {
		return
	}
	p.Peer.Done(func(err error) {
		p.rdma.Fail(err)
		p.rdma.Stop()
	})
}
