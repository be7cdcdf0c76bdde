package main

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// depth is how many additions are in flight on one connection.
const depth = 8

// writers adds to the peer's event over all connections at the same time.
type writers struct {
	p    *program
	adds *rdma.Pool
	left uint64 // additions to be submitted
	busy int    // tasks in flight
}

func (w *writers) pools(p *program) (err error) {
	w.p, w.left = p, p.n
	w.adds, err = p.rdma.Pool(depth*p.writers, w.wasAdded, func(t *rdma.Task, err error) {
		p.fail(err)
		p.fail(t.Free())
	})
	return err
}

func (w *writers) begin(p *program) error {
	for i := range depth * p.writers {
		t, err := w.adds.SyncEventAdd(p.conns[i%len(p.conns)], p.peers, 1)
		if err != nil {
			return err
		}
		w.busy++
		w.submit(t)
	}
	return nil
}

func (w *writers) wasAdded(t *rdma.Task) { w.submit(t) }

// submit submits a task again, or frees it when no additions are left.
func (w *writers) submit(t *rdma.Task) {
	if w.left > 0 && w.p.rdma.Err() == nil {
		w.left--
		if err := t.Submit(); err == nil {
			return
		} else {
			w.p.fail(err)
		}
	}
	w.p.fail(t.Free())
	if w.busy--; w.busy == 0 && w.p.rdma.Err() == nil {
		w.p.finish()
	}
}

func (w *writers) free() error { return nil }

// sum waits for the sum of the additions by the peer and this program.
type sum struct {
	p      *program
	waits  *syncevent.Pool
	adding sync.WaitGroup
}

func (s *sum) pools(p *program) (err error) {
	s.p = p
	s.waits, err = p.events.Pool(1, s.wasWoken, func(t *syncevent.Task, err error) {
		p.fail(err)
		p.fail(t.Free())
	})
	return err
}

func (s *sum) begin(p *program) error {
	t, err := s.waits.Wait(p.own, syncevent.Greater(p.n+p.local-1))
	if err != nil {
		return err
	}
	for i := range p.writers {
		s.adding.Go(func() { s.add(uint64(i)) })
	}
	return t.Submit()
}

// add adds this program's share, on a separate goroutine, once the peer has begun.
func (s *sum) add(i uint64) {
	if i >= s.p.local {
		return
	}
	if _, err := s.p.own.Wait(s.p.ctx, syncevent.Greater(0)); err != nil {
		_ = s.p.engine.Do(func() { s.p.fail(err) }) // fails only after the end of Run
		return
	}
	for ; i < s.p.local && s.p.ctx.Err() == nil; i += uint64(s.p.writers) {
		if _, err := s.p.own.Add(1); err != nil {
			_ = s.p.engine.Do(func() { s.p.fail(err) }) // fails only after the end of Run
			return
		}
	}
}

func (s *sum) wasWoken(t *syncevent.Task) {
	s.p.fail(t.Free())
	s.adding.Wait()
	s.p.runAside(func() func() error {
		err := s.p.meet()
		return func() error {
			if v, _ := s.p.own.Get(); v != s.p.n+s.p.local {
				s.p.fail(fmt.Errorf("the sum is %d, want %d", v, s.p.n+s.p.local))
			}
			s.p.stop()
			return err
		}
	})
}

func (s *sum) free() error { return nil }
