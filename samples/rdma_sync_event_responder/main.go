// Command rdma_sync_event_responder synchronizes with its peer,
// rdma_sync_event_requester, through a sync event: a 64-bit value in its memory that
// both change. It
//
//  1. waits until the peer has set the event to 0xd0ca, by waiting for more than
//     the value before;
//  2. adds 1, which the peer waits for;
//  3. waits for the largest 64-bit value: the peer is done.
//
// It submits no task: the waits block a goroutine of their own, beside the engine.
package main

import (
	"context"
	"math"
	"sync"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Values of the event. The peer knows them too.
const (
	signal   = 0xd0ca
	finished = math.MaxUint64
)

// allBits has a wait compare the whole value.
const allBits = math.MaxUint64

func main() {
	p := &responder{}
	sample.Main(sample.Program{
		Name:   "rdma_sync_event_responder",
		About:  "Waits for rdma_sync_event_requester on a sync event, and answers on it.",
		Role:   sample.Responder,
		Peer:   "rdma_sync_event_requester",
		Memory: sample.ExportsEvent,
	}, p.run)
}

type responder struct {
	*sample.Session
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	event  *syncevent.Event
	ctx    context.Context // of the waits
	cancel func()
	beside sync.WaitGroup // the goroutine that waits
	left   int            // of two: our steps, and the peer's end
}

func (p *responder) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s

	// The device.
	if p.dev, err = device.Open(s.Device); err != nil {
		return err
	}
	defer sample.Close(&err, p.dev.Close)

	// The event, which both sides change. On some adapters an addition of ours
	// could be lost if the peer changes the value at the same time (IBTA 9.4.5.1).
	// Here the two alternate.
	p.event, err = syncevent.New(p.dev, syncevent.Config{
		Publishers:      syncevent.PublishLocal | syncevent.PublishRemote,
		NeverConcurrent: true,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.event.Close)

	// The waits end with the program, however it ends.
	p.ctx, p.cancel = context.WithCancel(ctx)
	defer p.beside.Wait()
	defer p.cancel()

	// The engine, and the RDMA context on it. The peer sets and gets.
	p.engine = pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, p.engine.Close)
	p.rdma, err = rdma.New(p.dev, rdma.Config{
		Engine:         p.engine,
		GIDIndex:       s.GIDIndex,
		MTU:            s.MTU,
		ConnectTimeout: s.ConnectTimeout,
		AckTimeout:     s.AckTimeout,
		Permissions:    mmap.RemoteRead,
		Log:            s.Log,
	})
	if err != nil {
		return err
	}
	defer sample.Close(&err, p.rdma.Close)
	p.Peer.EndWith(p.rdma)

	// What its callbacks need is in p: they are its methods.
	p.rdma.OnStateChange(p.stateChanged)

	// From here on everything happens in callbacks, and beside them, until the
	// context is Idle.
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
		p.begin()
	case pe.Stopping:
		p.cancel()
	}
}

// connect makes the connection with the peer, which gets the descriptor of our event. The
// context is Running once both ends have connected.
func (p *responder) connect() {
	offer := oob.Offer{Events: []*syncevent.Event{p.event}}
	p.Peer.Exchange(context.Background(), p.rdma, offer, func(_ *oob.Answer, err error) { p.rdma.Fail(err) })
}

// begin takes the steps, without keeping the engine from its work. The peer may
// fail meanwhile, and says so as it says that it has succeeded.
func (p *responder) begin() {
	p.left = 2
	p.Peer.Done(p.ended)
	p.beside.Go(func() {
		err := p.synchronize()
		_ = p.engine.Do(func() { p.ended(err) }) // fails only after Run
	})
}

// synchronize takes the three steps.
func (p *responder) synchronize() error {
	v, err := p.event.WaitGreater(p.ctx, signal-1, allBits)
	if err != nil {
		return err
	}
	p.Print("was set to %#x: %s", v, sample.Word(v))
	old, err := p.event.Add(1)
	if err != nil {
		return err
	}
	p.Print("added 1, which makes %#x: %s", old+1, sample.Word(old+1))
	v, err = p.event.WaitGreater(p.ctx, finished-1, allBits)
	if err != nil {
		return err
	}
	p.Print("was set to %#x: %s", v, sample.Word(v))
	return nil
}

// ended stops the context when the steps are taken and the peer has ended: its
// last task needs our end of the connection.
func (p *responder) ended(err error) {
	p.rdma.Fail(err)
	if p.left--; p.left == 0 {
		p.rdma.Stop()
	}
}
