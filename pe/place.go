package pe

import (
	"context"

	"github.com/verbena-rdma/verbena/internal/host"
)

// place is where Run sleeps: at the device of one of the contexts, so that a packet wakes the goroutine
// in Run and no other one. The devices of the other contexts notify the engine as if it slept elsewhere.
type place struct{ host.Sleeper }

// sleepingBackend is a Backend whose device may have a place to sleep at; otherwise it returns nil. What
// it returns can be compared.
type sleepingBackend interface{ Sleeper() host.Sleeper }

// maySleepAtDevice makes the end of ctx end a sleep at a device, until the function that it returns is
// called.
func (e *Engine) maySleepAtDevice(ctx context.Context) (end func()) {
	stop := context.AfterFunc(ctx, e.notifier.endSleepAtPlace)
	return func() {
		stop()
		e.leavePlace()
	}
}

// choosePlace decides where the next sleep is.
func (e *Engine) choosePlace() {
	n := &e.notifier
	var at host.Sleeper
	if e.turns.Load() == nil {
		for _, c := range e.contexts {
			if b := c.sleeping; b != nil && c.State() != Idle {
				if at = b.Sleeper(); at != nil {
					break
				}
			}
		}
	}
	if p := n.place.Load(); p != nil && p.Sleeper == at {
		return
	}
	e.leavePlace()
	if at != nil {
		n.place.Store(&place{at})
	}
}

// leavePlace makes the device's own goroutine do the work there.
func (e *Engine) leavePlace() {
	if p := e.notifier.place.Swap(nil); p != nil {
		p.Leave()
	}
}

// sleepAtPlace sleeps at the place that was chosen. It returns false if there is none, or the engine
// cannot sleep there.
func (n *notifier) sleepAtPlace() bool {
	p := n.place.Load()
	if p == nil {
		return false
	}
	if !p.Sleep(&n.ended) {
		n.place.Store(nil)
		p.Leave()
		return false
	}
	return true
}
