package pe

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// alarm carries Wake to an engine that sleeps in Run, or in a caller's own
// event loop.
//
// A waker publishes its work, sets woken, and then looks whether anybody sleeps;
// the engine says that it sleeps, and then looks at woken. So one of the two
// always sees the other.
type alarm struct {
	woken    atomic.Bool   // since the last pass began
	sleeping atomic.Bool   // Run is at the bell, or about to be
	bell     chan struct{} // holds one ring

	armed atomic.Bool // a notification was asked for and not given
	mu    sync.Mutex  // guards the rest, and keeps fd consistent with armed
	fd    int         // -1: none
	buf   [8]byte     // what is read from fd and written to it
}

func (a *alarm) init() {
	a.bell = make(chan struct{}, 1)
	a.fd = -1
}

// hear notes that a pass begins, which serves all calls of wake so far.
func (a *alarm) hear() {
	if a.woken.Load() {
		a.woken.Store(false)
	}
}

func (e *Engine) wake() {
	a := &e.alarm
	if a.woken.Load() || a.woken.Swap(true) {
		return // whoever set it does the rest
	}
	if a.sleeping.Load() {
		select {
		case a.bell <- struct{}{}:
		default:
		}
	}
	if a.armed.Load() {
		a.notify()
	}
}

// notify makes the descriptor readable, once per Arm.
func (a *alarm) notify() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.armed.CompareAndSwap(true, false) && a.fd >= 0 {
		signalFD(a.fd, &a.buf)
	}
}

func (a *alarm) open() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		fd, err := openFD()
		if err != nil {
			return -1, err
		}
		a.fd = fd
	}
	return a.fd, nil
}

func (a *alarm) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed.Store(false)
	if a.fd < 0 {
		return nil
	}
	fd := a.fd
	a.fd = -1
	return closeFD(fd)
}

// NotificationFD returns a descriptor for epoll, poll or select, which becomes
// readable when a notification that was asked for with Arm comes. It is made at
// the first call, stays the same, and belongs to the engine: do not read, write
// or close it. It is an eventfd(2) on Linux; elsewhere the call fails with an
// *UnsupportedError: use Run or Progress there.
func (e *Engine) NotificationFD() (int, error) {
	if e.closed.Load() {
		return -1, fmt.Errorf("pe: cannot get the notification descriptor: the engine is closed: %w", ErrClosed)
	}
	return e.alarm.open()
}

// Arm asks for one notification: the descriptor becomes readable as soon as
// Progress has something to do, and at once if it has now. Tasks that are merely
// in flight are nothing to do. Arming again changes nothing but the time of the
// check. It fails like Progress, or if there is no descriptor to be had.
func (e *Engine) Arm() error {
	if err := e.acquire("arm the notification"); err != nil {
		return err
	}
	defer e.release()
	if _, err := e.alarm.open(); err != nil {
		return err
	}
	e.alarm.armed.Store(true)
	if !e.armBackends() || e.queued() || e.alarm.woken.Load() {
		e.alarm.notify()
	}
	return nil
}

// Clear makes the descriptor unreadable and takes back Arm. Events are not
// touched by it: Progress handles them at any time, and the next Arm sees those
// that are left.
func (e *Engine) Clear() error {
	a := &e.alarm
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed.Store(false)
	if e.closed.Load() {
		return fmt.Errorf("pe: cannot clear the notification: the engine is closed: %w", ErrClosed)
	}
	if a.fd < 0 {
		return nil
	}
	return clearFD(a.fd, &a.buf)
}

// armBackends arms the contexts, and reports false if one has something to do.
func (e *Engine) armBackends() bool {
	for _, c := range e.contexts {
		if c.State() == Idle {
			continue
		}
		c.inside = true
		armed := c.backend.Arm()
		c.leave()
		if !armed {
			return false
		}
	}
	return true
}
