package rdma

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/deadline"
	"github.com/verbena-rdma/verbena/verbs"
)

// The pauses between attempts to bring up a queue pair whose peer is down.
const (
	firstTransitionPause   = 50 * time.Millisecond
	longestTransitionPause = time.Second
)

// transition takes a connection's queue pair from Init to Ready to Send. On adapters, the
// kernel then resolves the peer's address, which takes a second and more if the peer is down.
// So a helper does it, and repeats it while the peer is down. Nothing else uses the queue pair
// meanwhile: tasks wait in the lane. A verbs.PromptQP needs no helper.
type transition struct {
	conn      *Connection
	attr      verbs.QPAttr
	done      func(err error) // called on the engine's goroutine, unless the connection ends before
	running   bool            // a helper has the queue pair
	shut      atomic.Bool     // the lane is to be shut when no helper has the queue pair; helpers read it
	postponed []func()        // to be run when no helper has the queue pair
	pause     time.Duration
	retry     deadline.Deadline // when to try again
	last      error             // why the last attempt failed; nil: it did not
}

// connectLane takes the queue pair from Init to Ready to Send. attr has all attributes but
// State. done gets the error, inside this call or later, unless the connection ends before.
func (conn *Connection) connectLane(attr verbs.QPAttr, done func(err error)) {
	conn.takeReceives()
	conn.life.Takes(conn.ctx.receives.SRQ() != nil && conn.ctx.phase == phaseUp)
	t := &conn.transition
	t.conn, t.attr, t.done, t.pause, t.last = conn, attr, done, firstTransitionPause, nil
	t.retry.Init(&conn.ctx.deadlines.Deadlines, t.due)
	t.attempt()
}

func (t *transition) attempt() {
	t.running = true
	c, l, attr := t.conn.ctx, t.conn.lane, t.attr
	t.conn.receives.Hold()
	if _, prompt := l.QP().(verbs.PromptQP); prompt {
		t.attemptDone(l.BringUp(attr))
		return
	}
	run := c.helpers.Run
	if t.last != nil {
		run = c.helpers.Repeat
	}
	run(func() func() {
		var err error
		if !t.shut.Load() { // else the connection has ended while the call waited
			err = l.BringUp(attr)
		}
		return func() { t.attemptDone(err) }
	})
}

// due is called at the deadline.
func (t *transition) due(time.Time) { t.attempt() }

// cancel ends a transition that no helper works on.
func (t *transition) cancel() {
	t.done = nil
	if t.conn != nil {
		t.retry.Set(time.Time{})
	}
}

// postpone makes f run when no helper has the queue pair.
func (t *transition) postpone(f func()) { t.postponed = append(t.postponed, f) }

// attemptDone handles the result of an attempt.
func (t *transition) attemptDone(err error) {
	conn, done, postponed := t.conn, t.done, t.postponed
	t.running, t.postponed, t.last = false, nil, err
	conn.receives.Resume()
	switch {
	case t.shut.Load():
		conn.shutLane()
	case err == nil:
		t.done = nil
		conn.lane.Connected()
		if conn.state().usable() {
			done(nil)
		}
	case conn.state().usable() && errors.Is(err, verbs.ErrUnreachable):
		t.retry.Set(conn.ctx.host.Now().Add(t.pause))
		t.pause = min(2*t.pause, longestTransitionPause)
	case conn.state().usable():
		t.done = nil
		done(err)
	default: // a disconnect notice waits for the transition
		conn.do(conn.life.Break(conn.ctx.host.Now()))
	}
	for _, f := range postponed {
		f()
	}
	conn.ctx.wake()
}
