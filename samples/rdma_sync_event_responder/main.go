// Command rdma_sync_event_responder synchronizes with its peer, rdma_sync_event_requester,
// through a sync event: a 64-bit value in its memory that both change. It
//
//  1. waits until the peer has set the event to 0xd0ca;
//  2. adds 1, which the peer waits for;
//  3. waits for the largest 64-bit value: the peer is done.
//
// It submits no task: it waits on a separate goroutine, which does not block the engine.
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
)

// Values of the event. The peer knows them too.
const (
	signal   = 0xd0ca
	finished = math.MaxUint64
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_sync_event_responder",
		About:  "Waits for rdma_sync_event_requester on a sync event, and answers on it.",
		Role:   sample.Responder,
		Peer:   "rdma_sync_event_requester",
		Memory: sample.ExportsEvent,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the event with it

	// The event. On some adapters an addition by this program could be lost if the peer
	// changes the value at the same time (IBTA 9.4.5.1). Here the two alternate.
	event, err := syncevent.New(dev, syncevent.Config{
		Publishers: syncevent.PublishLocal | syncevent.PublishRemote, NeverConcurrent: true})
	if err != nil {
		return err
	}

	// The engine, and the RDMA context on it, where the peer sets and gets.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		Permissions: mmap.RemoteRead})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	// The waits end with the program, however it ends.
	waiting, cancel := context.WithCancel(ctx)
	var waits sync.WaitGroup
	defer waits.Wait()
	defer cancel()

	left := 2 // our steps, and the peer's end: its last task needs our end of the connection
	ended := func(err error) {
		r.Fail(err) // Fail(nil) does nothing
		if left--; left == 0 {
			r.Stop()
		}
	}
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors: the peer gets the event's
			s.Peer.Exchange(ctx, r, oob.Offer{Events: []*syncevent.Event{event}}, nil) // an error ends the context
		case pe.Running: // the steps, without blocking the engine
			s.Peer.Done(ended)
			waits.Go(func() {
				v, err := event.Wait(waiting, syncevent.Greater(signal-1))
				if err == nil {
					s.Print("was set to %#x: %s", v, sample.Word(v))
					v, err = event.Add(1)
				}
				if err == nil {
					s.Print("added 1, which makes %#x: %s", v+1, sample.Word(v+1))
					v, err = event.Wait(waiting, syncevent.Greater(finished-1))
				}
				if err == nil {
					s.Print("was set to %#x: %s", v, sample.Word(v))
				}
				_ = engine.Do(func() { ended(err) }) // fails only after Run
			})
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
