package pe

import (
	"context"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/host"
)

// place is where the goroutine that drives the engine sleeps: at the device of one of the contexts, so
// that a packet wakes it and no other one. The devices of the other contexts notify the engine as if it
// slept elsewhere.
type place struct {
	host.Sleeper
	entered bool // the last sleep there was not refused. It belongs to the goroutine that drives the engine
}

// sleep is Sleep.
func (p *place) sleep(ended *atomic.Bool) bool {
	p.entered = p.Sleep(ended)
	return p.entered
}

// sleepingBackend is a Backend whose device may have a place to sleep at; otherwise it returns nil. What
// it returns can be compared.
type sleepingBackend interface{ Sleeper() host.Sleeper }

// handover is what Run and a goroutine that drives the engine in place of Run know of each other's sleep.
type handover struct {
	last atomic.Pointer[place] // used last; nil: there is none now
	// taken is cleared by the first of Run, when its sleep at the place has ended, and a goroutine that
	// takes the place from it. That one waits for moved.
	taken atomic.Bool
	moved chan struct{} // has room for one
}

// maySleepAtDevice makes the end of ctx end a sleep at a device, until the function that it returns is
// called.
func (e *Engine) maySleepAtDevice(ctx context.Context) (end func()) {
	stop := context.AfterFunc(ctx, func() {
		if e.turns.Load() == nil {
			e.wake()                     // Run does not go to sleep, if it is about to
			e.notifier.endSleepAtPlace() // and wakes, also if a goroutine in Dispatch takes the wake-up
		}
	})
	return func() {
		stop()
		e.leavePlace()
	}
}

// choosePlace decides where the next sleep is.
func (e *Engine) choosePlace() *place {
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
	p := n.place.Load()
	if p != nil && p.Sleeper == at {
		return p
	}
	e.leavePlace()
	if at == nil {
		e.handover.last.Store(nil)
		return nil
	}
	if p = e.handover.last.Load(); p == nil || p.Sleeper != at {
		p = &place{Sleeper: at}
		e.handover.last.Store(p)
	}
	n.place.Store(p)
	return p
}

// leavePlace makes the device's own goroutine do the work there, unless another goroutine does, for which
// the last sleep was refused.
func (e *Engine) leavePlace() {
	if p := e.notifier.place.Swap(nil); p != nil && p.entered {
		p.Leave()
	}
}

// sleepAtPlace sleeps in Run at a place. It returns false if Run has to sleep at wakeup instead: it
// cannot sleep at the place, or another goroutine drives the engine and sleeps there.
func (e *Engine) sleepAtPlace(p *place) bool {
	n, b := &e.notifier, &e.handover
	slept := p.sleep(&n.ended)
	if !slept {
		e.leavePlace()
	}
	if !b.taken.Swap(false) {
		b.moved <- struct{}{}
		return false
	}
	return slept || n.ended.Load()
}

// takePlace makes the place free for the calling goroutine, which drives the engine while Run sleeps.
// It returns nil if there is none.
func (e *Engine) takePlace() *place {
	n, b := &e.notifier, &e.handover
	if b.taken.Swap(false) {
		n.endSleepAtPlace()
		<-b.moved
		n.ended.Store(false)
	}
	return e.choosePlace()
}
