package main

import (
	"fmt"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// alternating adds to the peer's event after each addition of the peer to ours.
type alternating struct {
	p     *program
	adds  *rdma.Pool
	waits *syncevent.Pool
	add   *rdma.Task
	wait  *syncevent.Task
	final uint64 // the final value of each event
	seen  uint64 // the last known value of our event
	added uint64 // our additions, which is the value of the peer's event
}

func (t *alternating) pools(p *program) (err error) {
	t.p, t.final = p, p.n/2
	t.adds, err = p.rdma.Pool(1, t.wasAdded, func(_ *rdma.Task, err error) { t.ended(err) })
	if err != nil {
		return err
	}
	t.waits, err = p.events.Pool(1, t.wasWoken, func(_ *syncevent.Task, err error) { t.ended(err) })
	return err
}

func (t *alternating) begin(p *program) (err error) {
	if t.add, err = t.adds.SyncEventAdd(p.conns[0], p.peers, 1); err != nil {
		return err
	}
	if t.wait, err = t.waits.Wait(p.own, syncevent.Greater(0)); err != nil {
		return err
	}
	if err := t.wait.Submit(); err != nil {
		return err
	}
	return t.next()
}

func (t *alternating) wasAdded(add *rdma.Task) {
	if add.Original() != t.added-1 {
		t.p.fail(fmt.Errorf("addition %d returned the value %d", t.added, add.Original()))
		return
	}
	t.p.fail(t.next())
}

func (t *alternating) wasWoken(wait *syncevent.Task) {
	if wait.Original() != t.seen+1 {
		t.p.fail(fmt.Errorf("step %d was lost or duplicated: the value is %d", t.seen+1, wait.Original()))
		return
	}
	if t.seen++; t.seen < t.final {
		err := wait.SetCondition(syncevent.Greater(t.seen))
		if err == nil {
			err = wait.Submit()
		}
		t.p.fail(err)
	}
	t.p.fail(t.next())
}

// next adds 1 if the peer has made its step: the first program makes each of its steps before
// the peer's, the second after it.
func (t *alternating) next() error {
	allowed := t.seen
	if t.p.first {
		allowed++
	}
	switch {
	case t.p.rdma.Err() != nil || t.add.InFlight():
	case t.added < t.final && t.added < allowed:
		t.added++
		return t.add.Submit()
	case t.added == t.final && t.seen == t.final:
		t.p.finish()
	}
	return nil
}

// ended handles the tasks that fail when the contexts stop.
func (t *alternating) ended(err error) {
	t.p.fail(err)
	t.p.fail(t.free())
}

// free frees the tasks that are no longer in flight.
func (t *alternating) free() error {
	if t.add != nil && !t.add.InFlight() {
		add := t.add
		t.add = nil
		if err := add.Free(); err != nil {
			return err
		}
	}
	if t.wait != nil && !t.wait.InFlight() {
		wait := t.wait
		t.wait = nil
		return wait.Free()
	}
	return nil
}
