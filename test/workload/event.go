package main

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Values of the sync event: the requester sets the first; the responder adds 1; the requester,
// which polls for that, sets the last.
const (
	question = 0xd0ca
	reply    = question + 1
	finished = math.MaxUint64
)

// signaller is the requester of sync events.
type signaller struct {
	*end
	sets   *rdma.Pool
	gets   *rdma.Pool
	remote *syncevent.Event
}

func signals(e *end) role { return &signaller{end: e} }

func (s *signaller) open() (err error) {
	if s.sets, err = s.rdma.Pool(1, s.wasSet, s.failed); err != nil {
		return err
	}
	s.gets, err = s.rdma.Pool(1, s.got, s.failed)
	return err
}

func (s *signaller) offer() oob.Offer { return oob.Offer{} }

// begin submits a set of the event, and a get of the reply. The get follows the set on the
// same connection, so it finds the value that was set, or a later one.
func (s *signaller) begin(theirs *oob.Answer) error {
	s.remote = theirs.Events[0]
	set, err := s.sets.SyncEventSet(s.conns[0], s.remote, question)
	if err != nil {
		return err
	}
	get, err := s.gets.SyncEventGet(s.conns[0], s.remote)
	if err != nil {
		return errors.Join(err, set.Free())
	}
	tasks := []*rdma.Task{set, get}
	n, err := rdma.SubmitAll(tasks, 0)
	return errors.Join(err, rdma.FreeAll(tasks[n:]))
}

func (s *signaller) wasSet(t *rdma.Task) {
	v := t.Value()
	s.print("set: %s", word(v))
	s.rdma.Fail(t.Free())
	if v == finished {
		s.rdma.Stop()
	}
}

func (s *signaller) got(t *rdma.Task) {
	if t.Original() < reply {
		if err := t.Submit(); err != nil {
			s.failed(t, err)
		}
		return
	}
	s.print("added to: %s", word(t.Original()))
	s.rdma.Fail(t.Free())
	set, err := s.sets.SyncEventSet(s.conns[0], s.remote, finished)
	if err != nil {
		s.rdma.Fail(err)
		return
	}
	if err := set.Submit(); err != nil {
		s.failed(set, err)
	}
}

func (s *signaller) failed(t *rdma.Task, err error) {
	s.rdma.Fail(err)
	s.rdma.Fail(t.Free())
}

func (s *signaller) close() error { return nil }

// waiter is the responder of sync events. It submits nothing: it waits on a separate
// goroutine.
type waiter struct {
	*end
	event      *syncevent.Event
	cancel     func()
	goroutines sync.WaitGroup
	left       int // of two: the steps, and the requester's end; how many remain
}

func waits(e *end) role { return &waiter{end: e} }

func (w *waiter) open() (err error) {
	// The two ends alternate, so that no addition is lost on an adapter.
	w.event, err = syncevent.New(w.dev, syncevent.Config{Publishers: syncevent.PublishLocal | syncevent.PublishRemote, NeverConcurrent: true})
	return err
}

func (w *waiter) offer() oob.Offer { return oob.Offer{Events: []*syncevent.Event{w.event}} }

// begin starts the steps, and waits for the requester to end: the requester's last task needs
// this end of the connection, and the requester may fail before.
func (w *waiter) begin(*oob.Answer) error {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.left = 2
	w.peer.Done(w.ended)
	w.goroutines.Go(func() {
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
	v, err := w.event.Wait(ctx, syncevent.Greater(question-1))
	if err != nil {
		return err
	}
	w.print("set: %s", word(v))
	old, err := w.event.Add(1)
	if err != nil {
		return err
	}
	w.print("added to: %s", word(old+1))
	if v, err = w.event.Wait(ctx, syncevent.Greater(finished-1)); err != nil {
		return err
	}
	w.print("set: %s", word(v))
	return nil
}

func (w *waiter) close() error {
	if w.cancel != nil {
		w.cancel()
		w.goroutines.Wait()
	}
	if w.event == nil {
		return nil
	}
	return w.event.Close()
}
