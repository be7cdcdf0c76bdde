package link

import (
	"errors"
	"net"
	"sync"
	"time"
)

// portableWaitSet is the WaitSet of portable sockets.
type portableWaitSet struct {
	wake  chan struct{} // holds at most one token
	timer *time.Timer   // used by the waiter

	mu          sync.Mutex
	full        int // sockets that have something to receive
	interrupted bool
	closed      bool
	waiting     bool
	deadline    time.Time // of the current or the next wait
}

func newPortableWaitSet() *portableWaitSet {
	return &portableWaitSet{wake: make(chan struct{}, 1)}
}

// signal wakes the waiter. The lock is held.
func (s *portableWaitSet) signal() {
	if !s.waiting {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// add changes the number of sockets that have something to receive.
func (s *portableWaitSet) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full += n; s.full > 0 {
		s.signal()
	}
}

// Wait implements WaitSet.
func (s *portableWaitSet) Wait(deadline time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = earlier(s.deadline, deadline)
	s.waiting = true
	for !s.closed && !s.interrupted && s.full == 0 {
		if !s.sleep() {
			break
		}
	}
	s.waiting, s.interrupted = false, false
	s.deadline = time.Time{}
	if s.closed {
		return net.ErrClosed
	}
	return nil
}

// Poll implements WaitSet. All sockets are Ready, and no files are watched.
func (s *portableWaitSet) Poll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	return nil
}

// sleep releases the lock until a signal or the deadline. It reports false if the deadline had
// already passed.
func (s *portableWaitSet) sleep() bool {
	var expired <-chan time.Time
	if !s.deadline.IsZero() {
		left := time.Until(s.deadline)
		if left <= 0 {
			return false
		}
		if s.timer == nil {
			s.timer = time.NewTimer(left)
		} else {
			s.timer.Reset(left)
		}
		defer s.timer.Stop()
		expired = s.timer.C
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-s.wake:
	case <-expired:
	}
	return true
}

// Interrupt implements WaitSet.
func (s *portableWaitSet) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	s.signal()
}

// ClearInterrupt implements WaitSet.
func (s *portableWaitSet) ClearInterrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = false
}

// SetDeadline implements WaitSet.
func (s *portableWaitSet) SetDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = earlier(s.deadline, t)
	s.signal()
}

// Watch implements WaitSet.
func (s *portableWaitSet) Watch(int, func()) error { return errors.ErrUnsupported }

// Unwatch implements WaitSet.
func (s *portableWaitSet) Unwatch(int) {}

// Close implements WaitSet.
func (s *portableWaitSet) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.signal()
	return nil
}
