// Command rdma_write_immediate_responder lets its peer,
// rdma_write_immediate_requester, write to its memory, and learns from a receive
// when that has happened: the write takes one, with a 32-bit immediate value. The
// receive needs no buffer, since the data goes to the exported memory. A write that
// comes before the receive waits for it.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_write_immediate_responder",
		About:  "Lets rdma_write_immediate_requester write to its memory, and takes its immediate value.",
		Role:   sample.Responder,
		Peer:   "rdma_write_immediate_requester",
		Memory: sample.ExportsMemory,
		Sized:  true,
	}, run)
}

type responder struct {
	*sample.Session
	dev      verbs.Device
	engine   *pe.Engine
	rdma     *rdma.Context
	local    *mmap.Map
	receives *rdma.ReceivePool
	written  int // bytes that have come
	left     int // receives that have not completed
}

func run(ctx context.Context, s *sample.Session) (err error) {
	p := &responder{Session: s}

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)
	if err := rdma.Supports(p.dev, rdma.OpReceive); err != nil {
		return err
	}

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
	if p.receives, err = p.rdma.ReceivePool(sample.Tasks(s.Capacity(), sample.MaxMessage), p.done, p.failed); err != nil {
		return err
	}
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
		p.rdma.Fail(p.receive())
	}
}

// connect makes the connection with the peer, which gets the descriptor of our memory. The
// context is Running once both ends have connected.
func (p *responder) connect() {
	p.Peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) }, p.local)
}

// receive submits receives without a buffer, all at once: one for each write, of
// which long data takes several.
func (p *responder) receive() error {
	var tasks []*rdma.ReceiveTask
	for range p.Parts(p.Capacity(), sample.MaxMessage) {
		task, err := p.receives.Alloc(nil)
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
	p.Log.Info().Int("receives", n).Msg("receive submitted")
	return err
}

func (p *responder) done(t *rdma.ReceiveTask) {
	p.rdma.Fail(p.show(t))
	p.finish(t)
}

// show checks what a write with immediate has brought, and prints the data when it
// is all there.
func (p *responder) show(t *rdma.ReceiveTask) error {
	imm, ok := t.Imm()
	if t.Opcode() != rdma.ReceivedWriteImm || !ok {
		return fmt.Errorf("expected a write with immediate, received a %v", t.Opcode())
	}
	if p.written += t.Length(); p.left > 1 {
		return nil
	}
	data, err := p.Verify(p.local.Bytes()[:p.written])
	if err != nil {
		return err
	}
	p.Print("was written: %s, immediate %#08x", sample.Describe(data), imm)
	return nil
}

func (p *responder) failed(t *rdma.ReceiveTask, err error) {
	p.rdma.Fail(err)
	p.finish(t)
}

// finish frees a receive, and its buffer with it. After the last one it waits for
// the peer to end: its device may still repeat a message whose acknowledgement was
// lost, and only a connection that is open acknowledges it again.
func (p *responder) finish(t *rdma.ReceiveTask) {
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
