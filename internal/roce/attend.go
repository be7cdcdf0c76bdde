package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// An endpoint is attended to by one goroutine at a time, which waits at its socket: that of
// the endpoint, or that of a program which sleeps in WaitCompletion. A program that waits
// there itself is woken by the packet; otherwise the endpoint's goroutine is, which wakes the
// program in turn. The second switch costs more than all else that a message does.
//
// The endpoint stays lent while the program runs. Its goroutine looks every pollerGrace
// whether the program still polls or waits, and takes the endpoint back if not.

// attendance is who attends to an endpoint. It is guarded by the shard's lock.
type attendance struct {
	wanted    bool             // a program would wait at the socket
	lent      bool             // the endpoint's goroutine leaves the socket to a program
	borrower  *completionQueue // of that program
	waits     bool             // it waits, or handles what has come
	turns     uint64           // of waiting
	unwatched bool             // the endpoint's goroutine sleeps until the program stops waiting
}

// quietTicks is how often the goroutine of an endpoint that is lent looks at a program that
// waits on without a packet, before it sleeps too.
const quietTicks = 8

var _ verbs.WaitingCQ = (*completionQueue)(nil)

// WaitCompletion implements verbs.WaitingCQ.
func (c *completionQueue) WaitCompletion() (waited bool) {
	s := c.lock()
	defer s.mu.Unlock()
	e := s.soleEndpoint()
	if e == nil || len(s.local.polled.peers) > 0 || c.closed || c.armed == notArmed {
		return false // or what was armed has come
	}
	if !e.lent || e.waits {
		e.wanted = true // it is lent when the endpoint's goroutine has woken this program
		return false
	}
	before, polls := c.armed, s.polls.Load()
	c.armed = notArmed // this goroutine looks
	e.borrower, e.waits, waited = c, true, true
	c.waitsAt.Store(e)
	for c.shard.Load() == s && c.entries.Len() == 0 && !c.overrun && !c.closed && !s.device.closed && !c.interrupted.Load() {
		if s.polls.Load() != polls {
			// Another program polls: it is not to be disturbed at every packet.
			c.armed, e.lent, waited = before, false, false
			e.endPause()
			break
		}
		if !c.attend(s, e) {
			break
		}
	}
	c.waitsAt.Store(nil)
	c.interrupted.Store(false)
	e.waits = false
	if waited {
		s.asleep.Store(false)
	}
	if e.unwatched {
		e.unwatched = false
		e.endPause()
	}
	return waited
}

// InterruptWait implements verbs.WaitingCQ.
func (c *completionQueue) InterruptWait() {
	c.interrupted.Store(true)
	if e := c.waitsAt.Load(); e != nil {
		e.socket.Interrupt()
	}
}

// wakeWaiting wakes a program that waits for what others have done.
func (c *completionQueue) wakeWaiting() {
	if c.unseen.Load() {
		c.InterruptWait()
	}
}

// attend waits at the socket and makes progress, once. It reports false if the socket is
// closed, or the queue is no longer in the shard. The lock of the shard is held, but not while
// it waits.
func (c *completionQueue) attend(s *shard, e *endpoint) bool {
	at, idle := e.beginWait()
	var err error
	if idle {
		c.unseen.Store(true)
		s.mu.Unlock()
		err = e.socket.Wait(at)
		s.mu.Lock()
		c.unseen.Store(false)
	}
	e.turns++
	if err != nil || s.device.closed || c.shard.Load() != s {
		return false
	}
	now := s.device.now()
	s.receive(now, e)
	s.acks.program = c.entries.Len() > 0
	if s.sendsMore() && !s.holdAcks(now) {
		s.transmit(now)
	}
	return true
}

// soleEndpoint is the only endpoint that works for queue pairs, or nil.
func (s *shard) soleEndpoint() (sole *endpoint) {
	for _, e := range s.endpoints {
		switch {
		case !e.wakes():
		case sole != nil:
			return nil
		default:
			sole = e
		}
	}
	return sole
}

// beginWait notes until when whoever attends to the endpoint waits, and reports whether there
// is nothing to be done before. The lock is held.
func (e *endpoint) beginWait() (at time.Time, idle bool) {
	s := e.shard
	e.wakesAt = never
	if s.deadline != 0 {
		e.wakesAt = s.deadline
		at = s.device.base.Add(s.deadline)
	}
	return at, !s.strays.waiting.Load() && (!s.sendsMore() || s.acks.heldUntil != 0)
}

// lend has the endpoint's goroutine leave the socket to the program that it has just told of a
// completion, if that program would wait there. The lock is held.
func (e *endpoint) lend() bool {
	if !e.wanted || !e.shard.acks.program {
		return false
	}
	e.wanted, e.lent = false, true
	select {
	case <-e.resume: // of the past
	default:
	}
	return true
}

// watch returns when the program that has the endpoint neither polls nor waits any more.
func (e *endpoint) watch() {
	s := e.shard
	var turns, polls uint64
	for quiet, asked := 0, false; ; {
		if quiet > quietTicks {
			<-e.resume
			quiet, asked = 0, true
		} else {
			asked = e.pause()
		}
		s.mu.Lock()
		active := e.turns != turns || s.polls.Load() != polls
		turns, polls = e.turns, s.polls.Load()
		switch {
		case s.device.closed, !e.lent, asked && !e.waits && s.asleep.Load(), !active && !e.waits:
			e.lent, e.unwatched = false, false
			s.mu.Unlock()
			return
		case active:
			quiet = 0
		default:
			quiet++
		}
		e.unwatched = quiet > quietTicks
		s.mu.Unlock()
	}
}
