package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// The pauses between attempts to bring up a queue pair whose peer is down.
const (
	firstTransitionPause   = 50 * time.Millisecond
	longestTransitionPause = time.Second
)

// promptQP is a queue pair whose Modify does not wait, not even for a peer that is down: one of the
// software device.
type promptQP interface{ ModifiesPromptly() }

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
	if _, prompt := l.QP().(promptQP); prompt {
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

// bringUp takes the queue pair from Init to Ready to Send, and calls done then.
func (conn *Connection) bringUp(done func()) {
	s := conn.ctx.set
	sgidIndex, err := conn.sgidIndex()
	if err != nil {
		conn.fail(err)
		return
	}
	conn.connectLane(verbs.QPAttr{
		Address: s.path(sgidIndex, conn.peer.gid, conn.peer.lid, conn.peer.udpPort, conn.peer.source),
		PathMTU: conn.path.mtu, DestQPN: conn.peer.qpn, RQPSN: conn.peer.psn, SQPSN: conn.local.psn,
		MaxDestReadAtomic: s.destReads, MaxInitReadAtomic: conn.path.maxReads, MinRNRTimer: minRNRTimer,
		Timeout: s.timeout, RetryCount: retryCount, RNRRetry: s.rnrRetry,
	}, func(err error) {
		if err != nil {
			conn.fail(conn.deviceError(err))
			return
		}
		done()
	})
}

// sgidIndex is the present index, in the GID table, of the address in this end's descriptor.
func (conn *Connection) sgidIndex() (int, error) {
	c, own := conn.ctx, &conn.local
	if now := &c.port.State().GID; now.GID == own.gid && now.Type == own.gidType {
		return now.Index, nil
	}
	if e, ok, err := c.port.Find(verbs.GIDEntry{GID: own.gid, Type: own.gidType}); err != nil || ok {
		return e.Index, err
	}
	return 0, fmt.Errorf("%w: the address %v in the exported descriptor is no longer in the GID table of port %d of %s; export another connection",
		ErrGID, own.gid.Addr(), c.set.Path.Port, c.dev.Name())
}

// reset takes the queue pair back to Init, from any state. No helper has it.
func (conn *Connection) reset() error {
	conn.transition.cancel()
	conn.life.Takes(false)
	conn.signal.send.ChangeID()
	conn.signal.purpose = signalNone
	if err := conn.lane.Reset(); err != nil {
		return err
	}
	conn.returnReceives()
	return conn.initialize(conn.ctx.set.Path.Port, 0)
}

// initialize takes the queue pair from Reset to Init, for a port of the device.
func (conn *Connection) initialize(port, pKeyIndex int) error {
	conn.path.port, conn.path.pKeyIndex = port, pKeyIndex
	return conn.lane.Initialize(port, pKeyIndex, conn.ctx.set.access)
}

// takeReceives lets a connection with a receive queue take receives: see receiving.Queue.Start.
func (conn *Connection) takeReceives() {
	conn.receives.Start()
	conn.ctx.receives.post()
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections.
func (conn *Connection) returnReceives() {
	conn.receives.Return()
	conn.ctx.wake()
}

// shutLane puts the queue pair in error, so that what is posted comes back flushed, as soon as no
// helper uses the queue pair.
func (conn *Connection) shutLane() {
	t := &conn.transition
	t.shut.Store(t.running)
	if t.running {
		return
	}
	t.cancel()
	if err := conn.lane.Shut(); err != nil {
		conn.ctx.control.Log().Warn().Err(err).Stringer("connection", conn).Msg("failed to move the queue pair to the error state")
	}
	conn.ctx.wake()
}
