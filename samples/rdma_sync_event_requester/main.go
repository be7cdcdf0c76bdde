// Command rdma_sync_event_requester synchronizes with its peer, rdma_sync_event_responder,
// through a sync event: a 64-bit value in the memory of the peer, which waits there. It
//
//  1. sets the event to 0xd0ca, which the peer waits for;
//  2. gets its value, again and again, until the peer has added 1;
//  3. sets it to the largest 64-bit value: it is done.
//
// One task sets, twice, and one gets: the callback of the get submits both again.
package main

import (
	"context"
	"errors"
	"math"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// Values of the event. The peer knows them too.
const (
	signal   = 0xd0ca
	answer   = signal + 1
	finished = math.MaxUint64
)

func main() {
	sample.Main(sample.Program{
		Name:   "rdma_sync_event_requester",
		About:  "Sets and gets the sync event of rdma_sync_event_responder.",
		Role:   sample.Requester,
		Peer:   "rdma_sync_event_responder",
		Memory: sample.ImportsEvent,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)

	// The engine, and the RDMA context on it. The values are in the tasks, not in memory of ours.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		EndWithLastConnection: true}) // the context ends with its peer
	if err != nil {
		return err
	}

	var set *rdma.Task
	sets, err := r.Pool(1,
		func(t *rdma.Task) {
			s.Print("set to %#x: %s", t.Value(), sample.Word(t.Value()))
			if t.Value() == finished {
				r.Fail(t.Free()) // Fail(nil) does nothing
				r.Stop()
			}
		},
		pe.FailContext)
	if err != nil {
		return err
	}
	gets, err := r.Pool(1,
		func(t *rdma.Task) {
			if t.Original() < answer {
				r.Fail(pe.SubmitOrFree(t, nil))
				return
			}
			s.Print("got %#x: %s", t.Original(), sample.Word(t.Original()))
			r.Fail(errors.Join(t.Free(), pe.SubmitOrFree(set, set.SetValue(finished))))
		},
		func(t *rdma.Task, err error) {
			if r.Fail(errors.Join(err, t.Free())); !set.InFlight() { // the set has completed, and its callback left the end to this one
				r.Fail(set.Free())
			}
		})
	if err != nil {
		return err
	}

	var a *oob.Answer
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		switch next {
		case pe.Starting: // exchange descriptors: the peer's event comes with its connection
			s.Peer.Exchange(ctx, r, oob.Offer{}, func(got *oob.Answer, err error) { a = got; r.Fail(err) })
		case pe.Running: // submit both; the get finds the first value or the peer's
			var err error
			set, err = sets.SyncEventSet(a.Connections[0], a.Events[0], signal)
			r.Fail(pe.SubmitOrFree(set, err))
			get, err := gets.SyncEventGet(a.Connections[0], a.Events[0])
			r.Fail(pe.SubmitOrFree(get, err))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
