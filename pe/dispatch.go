package pe

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

// substitution lets another goroutine drive the engine while Run sleeps, or a Close that drives
// it. The goroutine that changes state from possible drives the engine. A Run that spins is not
// substituted: it takes up queued functions soon, and those of several goroutines together.
type substitution struct {
	state    atomic.Int32
	ended    chan struct{} // has room for one; for a Run that is awaited
	sleeping uintptr       // ID of the goroutine that is substituted
}

// The states of a substitution.
const (
	impossible int32 = iota
	possible         // Run sleeps
	underWay         // another goroutine drives the engine; Run sleeps
	awaited          // another goroutine drives the engine; Run waits for it
)

// allowSubstitution is called before Run sleeps, with armed backends.
func (e *Engine) allowSubstitution() { e.substitution.state.Store(possible) }

// endSubstitution waits for a goroutine that drives the engine, and allows no other.
func (e *Engine) endSubstitution() {
	s := &e.substitution
	for !s.state.CompareAndSwap(possible, impossible) {
		if s.state.CompareAndSwap(underWay, awaited) {
			e.notifier.endSleepAtPlace() // of that goroutine
			<-s.ended
			return
		}
	}
}

// maxPassesForOthers bounds the work that a goroutine does for others after its own function.
const maxPassesForOthers = 2

// Dispatch is Do for functions that may run on the caller's goroutine. While Run sleeps,
// Dispatch runs f at once, as if in a callback inside Progress, and returns when f has returned.
// That saves waking the goroutine in Run. Otherwise, and while functions given to Do wait, it
// queues f exactly as Do does, and does not wait. Either way, the calls of Do and Dispatch of one
// goroutine keep their order.
//
// After f, Dispatch also does what is due then, at most for two passes: callbacks of any context
// of the engine, and functions that others have queued meanwhile, may run on the caller's
// goroutine before Dispatch returns. So the caller must not hold a lock that f, a callback or
// such a function takes. If one of them panics on the caller's goroutine, the panic passes through
// Dispatch, and the engine remains usable.
//
// Dispatch may be called from any goroutine. It always queues f in a callback of the engine, while
// Progress drives the engine, and on an engine with simulated devices, whose runs can be repeated.
// It allocates nothing when it runs f. Its errors are those of Do.
func (e *Engine) Dispatch(f func()) error {
	if f == nil {
		return fmt.Errorf("pe: cannot call Dispatch: the function is nil: %w", ErrInvalid)
	}
	if !e.substitute() {
		return e.Do(f)
	}
	e.runAsSubstitute(f)
	return nil
}

// substitute makes the calling goroutine drive the engine, if Run sleeps and no function was
// queued before.
func (e *Engine) substitute() bool {
	s := &e.substitution
	if e.turns.Load() != nil || s.state.Load() != possible || !s.state.CompareAndSwap(possible, underWay) {
		return false
	}
	if e.turns.Load() != nil || e.calls.pending() {
		e.substituted()
		return false
	}
	s.sleeping = e.driver.Swap(uintptr(goroutine.Current()))
	e.notifier.sleeping.Store(false) // from here on, calls of wake are for this goroutine
	return true
}

// substituted is called when the goroutine no longer drives the engine.
func (e *Engine) substituted() {
	s := &e.substitution
	if !s.state.CompareAndSwap(underWay, possible) {
		s.state.Store(impossible)
		s.ended <- struct{}{}
	}
}

// runAsSubstitute runs f, and returns the engine to Run, even after a panic or runtime.Goexit.
func (e *Engine) runAsSubstitute(f func()) {
	allDone := false
	defer func() {
		if !allDone {
			e.endSleep()
		}
		e.driver.Store(e.substitution.sleeping)
		e.substituted()
	}()
	f()
	allDone = e.doRest()
}

// DriveUntil drives the engine on the calling goroutine while Run sleeps, until done reports true, and
// sleeps at the device meanwhile: a goroutine that waits for what a callback brings is then woken by the
// packet, and not by Run. It returns false at once, or early, if Run must drive the engine or no device has a place to sleep at. When it
// returns true, Run sleeps on, and the device's own goroutine takes over after 1 to 2 ms. So it is
// for a goroutine that will soon call DriveUntil or Dispatch again. The rules of Dispatch hold. done is
// called after each pass; whoever changes its result on another goroutine calls Wake.
func (s forFriends) DriveUntil(done func() bool) bool {
	if s.handover.last.Load() == nil || !s.substitute() {
		return false
	}
	over := false
	s.runAsSubstitute(func() { over = s.drive(done) })
	return over
}

// Wake makes the goroutine that drives the engine look for work, and call the function given to
// DriveUntil. It may be called from any goroutine.
func (s forFriends) Wake() { s.wake() }

// drive is DriveUntil, once the calling goroutine drives the engine.
func (e *Engine) drive(done func() bool) (over bool) {
	n := &e.notifier
	defer n.place.Store(nil) // Run sleeps at wakeup
	for at := e.takePlace(); at != nil && !e.runDecides() && e.substitution.state.Load() == underWay; {
		worked := e.pass() > 0
		// Wake after this pass has begun ends the sleep, or prevents it; before, done sees its reason.
		if done() {
			return true
		}
		switch {
		case worked:
			e.spin.Found()
		case e.spin.KeepPolling(e.slice.now(), false):
			e.spin.YieldThread() // other goroutines have not been woken, or have other threads
		default:
			n.sleeping.Store(true)
			slept := !e.armBackends() || e.queued() || n.woken.Load() || at.sleep(&n.ended)
			n.sleeping.Store(false)
			n.ended.Store(false)
			e.spin.Woken(e.slice.now())
			if !slept {
				return false
			}
		}
	}
	return false
}

// doRest does what is due after f. It returns false if Run must do more.
func (e *Engine) doRest() bool {
	if e.turns.Load() != nil {
		return false // f has connected a simulated context
	}
	e.deliver()
	n := &e.notifier
	for passes := 0; !e.runDecides(); passes++ {
		if !n.woken.Load() {
			n.sleeping.Store(true)
			if e.armBackends() && !e.queued() && !n.woken.Load() {
				return true
			}
		}
		if passes == maxPassesForOthers {
			return false
		}
		n.sleeping.Store(false)
		e.pass()
	}
	return false
}

// runDecides reports whether Run must look at the states of the contexts: whether it returns, and
// for how long it waits for tasks that are held.
func (e *Engine) runDecides() bool {
	if e.active == 0 {
		return true
	}
	for _, c := range e.contexts {
		if c.State() == Stopping {
			return true
		}
	}
	return false
}
