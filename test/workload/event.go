package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Values of the sync event. The requester sets the first, and adds 1 as often as -n says, over
// all connections at the same time. The responder adds 1 as often as -local says. The
// requester polls for the sum, and sets the last.
const (
	question = 0xd0ca
	finished = math.MaxUint64
)

// depth is the number of additions in flight on a connection.
const depth = 8

// sum is the value of the event after all additions.
func (e *end) sum() uint64 { return question + uint64(e.n+e.added) }

// checkSum fails if an addition was lost or made twice.
func (e *end) checkSum(v uint64) error {
	if v != e.sum() {
		return fmt.Errorf("an addition was lost or made twice: the event is %d, want %d", v, e.sum())
	}
	e.print("added to: %s", word(v))
	return nil
}

// signaller is the requester of sync events.
type signaller struct {
	*end
	sets, adds, gets *rdma.Pool
	remote           *syncevent.Event
	left             int // additions to be submitted
	busy             int // additions in flight
}

func signals(e *end) role { return &signaller{end: e} }

func (s *signaller) open() (err error) {
	s.left = s.n
	if s.sets, err = s.rdma.Pool(1, s.wasSet, s.failed); err != nil {
		return err
	}
	if s.adds, err = s.rdma.Pool(depth*s.connections, s.wasAdded, s.failed); err != nil {
		return err
	}
	s.gets, err = s.rdma.Pool(1, s.got, s.failed)
	return err
}

func (s *signaller) begin(theirs *oob.Answer) error {
	s.remote = theirs.Events[0]
	return s.set(question)
}

func (s *signaller) set(v uint64) error {
	return pe.SubmitOrFree(s.sets.SyncEventSet(s.conns[0], s.remote, v))
}

func (s *signaller) get() error { return pe.SubmitOrFree(s.gets.SyncEventGet(s.conns[0], s.remote)) }

func (s *signaller) wasSet(t *rdma.Task) {
	v := t.Value()
	s.print("set: %s", word(v))
	s.rdma.Fail(t.Free())
	switch {
	case v == finished:
		s.rdma.Stop()
	case s.n > 0:
		s.rdma.Fail(s.add())
	default:
		s.rdma.Fail(s.get())
	}
}

// add submits the first additions of each connection.
func (s *signaller) add() error {
	for i := range min(s.left, depth*s.connections) {
		if err := pe.SubmitOrFree(s.adds.SyncEventAdd(s.conns[i%s.connections], s.remote, 1)); err != nil {
			return err
		}
		s.left--
		s.busy++
	}
	return nil
}

// wasAdded submits a task again while additions are left.
func (s *signaller) wasAdded(t *rdma.Task) {
	if s.left > 0 && s.rdma.Err() == nil {
		s.left--
		if err := t.Submit(); err != nil {
			s.failed(t, err)
		}
		return
	}
	s.rdma.Fail(t.Free())
	if s.busy--; s.busy == 0 && s.rdma.Err() == nil {
		s.rdma.Fail(s.get())
	}
}

func (s *signaller) got(t *rdma.Task) {
	v := t.Original()
	s.rdma.Fail(t.Free())
	if v < s.sum() && v >= question+uint64(s.n) {
		s.rdma.Fail(s.get()) // the responder still adds
		return
	}
	err := s.checkSum(v)
	if err == nil {
		err = s.set(finished)
	}
	s.rdma.Fail(err)
}

// waiter is the responder of sync events. It submits nothing: it waits and adds on goroutines of
// its own.
type waiter struct {
	*end
	left int // of two: the steps, and the requester's end; how many remain
}

func waits(e *end) role { return &waiter{end: e} }

func (w *waiter) open() (err error) {
	cfg := syncevent.Config{Publishers: syncevent.PublishLocal | syncevent.PublishRemote}
	// On an adapter, additions of the two ends at the same time can be lost.
	cfg.NeverConcurrent = w.n == 0 || w.added == 0
	w.event, err = syncevent.New(w.dev, cfg)
	return err
}

// begin starts the steps, and waits for the requester to end: the requester's last task needs
// this end of the connection, and the requester may fail before.
func (w *waiter) begin(*oob.Answer) error {
	w.left = 2
	w.peer.Done(w.ended)
	w.aside(func(ctx context.Context) {
		err := w.steps(ctx)
		_ = w.engine.Do(func() { w.ended(err) }) // fails only after the end of Run
	})
	return nil
}

func (w *waiter) ended(err error) {
	w.rdma.Fail(err)
	if w.left--; w.left == 0 {
		w.rdma.Stop()
	}
}

func (w *waiter) steps(ctx context.Context) error {
	if _, err := w.event.Wait(ctx, syncevent.Greater(question-1)); err != nil {
		return err
	}
	w.print("set: %s", word(question))
	var adding sync.WaitGroup
	failures := make([]error, w.connections)
	for i := range w.connections {
		adding.Go(func() {
			for n := i; n < w.added && failures[i] == nil && ctx.Err() == nil; n += w.connections {
				_, failures[i] = w.event.Add(1)
			}
		})
	}
	adding.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	v, err := w.event.Wait(ctx, syncevent.Greater(w.sum()-1))
	if err != nil {
		return err
	}
	if v == finished { // the requester has checked the sum
		v = w.sum()
	}
	if err := w.checkSum(v); err != nil {
		return err
	}
	if v, err = w.event.Wait(ctx, syncevent.Greater(finished-1)); err != nil {
		return err
	}
	w.print("set: %s", word(v))
	return nil
}
