package pe

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// notifier carries Wake to an engine that sleeps in Run, or in a caller's own event loop.
//
// No wake-up is lost: the waker sets woken and then reads sleeping; the engine sets sleeping
// and then reads woken. So at least one of the two sees the other. The waker makes its work
// visible before it sets woken.
type notifier struct {
	woken    atomic.Bool           // wake was called since the last pass began
	sleeping atomic.Bool           // Run waits for wakeup, or is about to, and no goroutine drives the engine meanwhile
	place    atomic.Pointer[place] // where the engine's goroutine sleeps; nil: at wakeup
	ended    atomic.Bool           // a sleep at place ends
	wakeup   chan struct{}         // has room for one
	endSleep func()                // ends the sleep

	armed    atomic.Bool // Arm has asked for a notification that has not come yet
	mu       sync.Mutex  // guards the rest, and keeps fd consistent with armed
	fd       int         // -1: none
	readable bool        // fd is
	buf      [8]byte     // what is read from fd and written to it
}

func (n *notifier) init() {
	n.wakeup = make(chan struct{}, 1)
	n.endSleep = func() {
		if n.endSleepAtPlace() {
			return
		}
		select {
		case n.wakeup <- struct{}{}:
		default:
		}
	}
	n.fd = -1
}

// endSleepAtPlace ends a sleep at place, and reports whether that is where the engine sleeps. A
// goroutine that goes from there to wakeup first sets place to nil and then reads ended; this one sets
// ended and then reads place. So at least one of the two sees the other.
func (n *notifier) endSleepAtPlace() bool {
	p := n.place.Load()
	if p == nil {
		return false
	}
	n.ended.Store(true)
	p.Wake()
	return n.place.Load() == p
}

// beginPass is called before each pass, which handles all calls of wake so far.
func (n *notifier) beginPass() {
	if n.woken.Load() {
		n.woken.Store(false)
	}
}

// wake ends the engine's sleep, or makes its notification descriptor readable.
func (e *Engine) wake() {
	n := &e.notifier
	if n.woken.Load() || n.woken.Swap(true) {
		return // the call that set it does the rest
	}
	if n.sleeping.Load() {
		e.endSleep()
	}
	if n.armed.Load() {
		n.signal()
	}
}

// endSleep wakes the goroutine that sleeps in Run.
func (e *Engine) endSleep() {
	n := &e.notifier
	if t := e.turns.Load(); t != nil {
		t.Wake(n.endSleep)
	} else {
		n.endSleep()
	}
}

// signal makes the descriptor readable, once per Arm.
func (n *notifier) signal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.armed.CompareAndSwap(true, false) && n.fd >= 0 {
		signalFD(n.fd, &n.buf)
		n.readable = true
	}
}

// clear makes the descriptor unreadable, and cancels the notification that was asked for.
func (n *notifier) clear() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed.Store(false)
	if n.fd < 0 || !n.readable {
		return nil
	}
	n.readable = false
	return clearFD(n.fd, &n.buf)
}

// notifyOfRest makes an armed descriptor readable if passes have left something to do.
func (e *Engine) notifyOfRest() {
	if e.notifier.armed.Load() && e.queued() {
		e.wake()
	}
}

func (n *notifier) open() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd < 0 {
		fd, err := openFD()
		if err != nil {
			return -1, err
		}
		n.fd = fd
	}
	return n.fd, nil
}

func (n *notifier) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed.Store(false)
	if n.fd < 0 {
		return nil
	}
	fd := n.fd
	n.fd, n.readable = -1, false
	return closeFD(fd)
}

// NotificationFD returns a descriptor for epoll, poll or select, which becomes readable when a
// notification asked for with Arm comes. The first call makes it. It stays the same and
// belongs to the engine: do not read, write or close it. It is an eventfd(2) on Linux.
// Elsewhere the call fails with an *UnsupportedError: use Run or Progress there.
func (e *Engine) NotificationFD() (int, error) {
	if e.closed.Load() {
		return -1, fmt.Errorf("pe: cannot get the notification descriptor: the engine is closed: %w", ErrClosed)
	}
	return e.notifier.open()
}

// Arm asks for one notification: the descriptor becomes readable as soon as Progress has
// something to do, or at once if it has now. Tasks that are merely in flight do not count. Arm
// cancels the previous notification, whether it has come or not, so a loop need not call
// Clear. It fails like Progress, or if the descriptor cannot be made.
func (e *Engine) Arm() error {
	if err := e.acquire("arm the notification"); err != nil {
		return err
	}
	defer e.release()
	if e.turns.Load() != nil {
		return &UnsupportedError{
			Feature: "a notification descriptor", Platform: "a simulated device", Instead: "use Engine.Run, or poll with Engine.Progress",
		}
	}
	if _, err := e.notifier.open(); err != nil {
		return err
	}
	if err := e.notifier.clear(); err != nil {
		return err
	}
	e.notifier.armed.Store(true)
	if !e.armBackends() || e.queued() || e.notifier.woken.Load() {
		e.notifier.signal()
	}
	return nil
}

// Clear makes the descriptor unreadable and cancels Arm, for loops that go on waiting without
// the engine. It does not touch events: Progress handles them at any time, and the next Arm
// sees those that are left.
func (e *Engine) Clear() error {
	if e.closed.Load() {
		return fmt.Errorf("pe: cannot clear the notification: the engine is closed: %w", ErrClosed)
	}
	return e.notifier.clear()
}

// armBackends arms the contexts, and reports false if one has something to do.
func (e *Engine) armBackends() bool {
	for _, c := range e.contexts {
		if c.State() == Idle {
			continue
		}
		c.inBackend = true
		armed := c.backend.Arm()
		c.leaveBackend()
		if !armed {
			return false
		}
	}
	return true
}
