package link

import (
	"net"
	"time"
)

// signal wakes the waiter. The lock is held.
func (p *portable) signal() {
	if !p.waiting {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *portable) wait(deadline time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = earlier(p.deadline, deadline)
	p.waiting = true
	for !p.closed && !p.interrupted && len(p.filling.datagrams) == 0 && p.err == nil {
		if !p.sleep() {
			break
		}
	}
	p.waiting = false
	p.interrupted = false
	p.deadline = time.Time{}
	if p.closed {
		return net.ErrClosed
	}
	return nil
}

// sleep releases the lock until a signal or the deadline. It reports false if the deadline had
// already passed.
func (p *portable) sleep() bool {
	var expired <-chan time.Time
	if !p.deadline.IsZero() {
		left := time.Until(p.deadline)
		if left <= 0 {
			return false
		}
		if p.timer == nil {
			p.timer = time.NewTimer(left)
		} else {
			p.timer.Reset(left)
		}
		defer p.timer.Stop()
		expired = p.timer.C
	}
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-p.wake:
	case <-expired:
	}
	return true
}

func (p *portable) interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interrupted = true
	p.signal()
}

func (p *portable) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = earlier(p.deadline, t)
	p.signal()
}
