package pe

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/internal/spin"
)

// substitution lets another goroutine drive the engine while the one that drives it sleeps: Run, or a
// Close that drives it, or DriveUntil, which itself drives the engine while Run sleeps. The goroutine
// that changes state from possible, or from lent to underWay, drives the engine. A goroutine that spins is not
// substituted: it takes up queued functions soon, and those of several goroutines together.
type substitution struct {
	state atomic.Int32
	ended chan struct{} // has room for one; for a Run that is awaited
	until func() bool   // of DriveUntil. It belongs to the goroutine that drives the engine
}

// The states of a substitution.
const (
	impossible int32 = iota
	possible         // Run sleeps
	underWay         // another goroutine drives the engine; Run sleeps
	awaited          // another goroutine drives the engine; Run waits for it
	lent             // DriveUntil sleeps, and so does Run
	recalled         // DriveUntil sleeps; Run waits for it
)

// standIn is a goroutine that drives the engine in place of another one.
type standIn struct {
	from   int32   // the state before
	driver uintptr // ID of the goroutine that is substituted
}

// allowSubstitution is called before Run sleeps, with armed backends.
func (e *Engine) allowSubstitution() { e.substitution.state.Store(possible) }

// endSubstitution waits for a goroutine that drives the engine, and allows no other.
func (e *Engine) endSubstitution() {
	s := &e.substitution
	for !s.state.CompareAndSwap(possible, impossible) {
		if s.state.CompareAndSwap(underWay, awaited) || s.state.CompareAndSwap(lent, recalled) {
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
	by, ok := e.substitute(lent)
	if !ok {
		return e.Do(f)
	}
	if profiling.Tracing() {
		inner := f
		f = func() { profiling.Region(functionRegion, inner) }
	}
	e.runAsSubstitute(by, f)
	return nil
}

// substitute makes the calling goroutine drive the engine, if the state is possible or other, and no
// function was queued before.
func (e *Engine) substitute(other int32) (by standIn, ok bool) {
	s := &e.substitution
	by.from = s.state.Load()
	if e.turns.Load() != nil || by.from != possible && by.from != other || !s.state.CompareAndSwap(by.from, underWay) {
		return by, false
	}
	if e.turns.Load() != nil || e.calls.pending() {
		e.substituted(by)
		return by, false
	}
	by.driver = e.driver.Swap(uintptr(goroutine.Current()))
	e.notifier.sleeping.Store(false) // from here on, calls of wake are for this goroutine
	return by, true
}

// substituted is called when the goroutine no longer drives the engine.
func (e *Engine) substituted(by standIn) {
	s := &e.substitution
	switch {
	case s.state.CompareAndSwap(underWay, by.from):
	case by.from == lent: // and DriveUntil has been woken
		s.state.Store(recalled)
	default:
		s.state.Store(impossible)
		s.ended <- struct{}{}
	}
}

// runAsSubstitute runs f, and returns the engine to the goroutine that sleeps, even after a panic or
// runtime.Goexit.
func (e *Engine) runAsSubstitute(by standIn, f func()) {
	allDone := false
	defer func() {
		if !allDone {
			e.endSleep()
		}
		e.endRegion()
		e.driver.Store(by.driver)
		e.substituted(by)
	}()
	f()
	allDone = e.doRest() && (by.from != lent || !e.substitution.until())
}

// DriveUntil drives the engine on the calling goroutine while Run sleeps, until done reports true, and
// sleeps at the device meanwhile: a goroutine that waits for what a callback brings is then woken by the
// packet, and not by Run. It returns false at once, or early, if Run must drive the engine, another
// goroutine has called DriveUntil or is in Dispatch, or the engine has no device that the caller can sleep at
// (only software devices outside of simulations can be); then the caller waits for the callback in another way.
// It may be called from any goroutine; in a callback of the engine it returns false.
//
// When it returns true, Run sleeps on, and the device's own goroutine takes over after 1 to 2 ms. So it is
// for a goroutine that will soon call DriveUntil or Dispatch again. If other goroutines still wait for callbacks,
// the caller then gives Do an empty function, which wakes Run.
//
// The rules of Dispatch hold, which runs its functions while DriveUntil sleeps. done is called after each pass,
// and after such functions, on the goroutine that drives the engine. Whoever changes its result elsewhere does
// so in a function given to Do or Dispatch.
func (e *Engine) DriveUntil(done func() bool) bool {
	if done == nil || e.handover.last.Load() == nil {
		return false
	}
	by, ok := e.substitute(possible)
	if !ok {
		return false
	}
	over := false
	e.runAsSubstitute(by, func() { over = e.drive(done) })
	return over
}

// Wake makes the goroutine that drives the engine look for work, and call the function given to
// DriveUntil. It may be called from any goroutine.
func (s forFriends) Wake() { s.wake() }

// drive is DriveUntil, once the calling goroutine drives the engine.
func (e *Engine) drive(done func() bool) (over bool) {
	n := &e.notifier
	e.substitution.until = done
	defer func() {
		e.substitution.until = nil
		n.place.Store(nil) // Run sleeps at wakeup
	}()
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
			slept := !e.armBackends() || e.queued() || n.woken.Load() || e.sleepSubstituted(at)
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

// maxLooks is how many times in a row sleepSubstituted looks whether a function of Dispatch has returned,
// before it pauses between two looks: the function may take long.
const (
	maxLooks  = 100
	lookPause = 20 * time.Microsecond
)

// sleepSubstituted sleeps at a place in DriveUntil. Others may drive the engine meanwhile.
func (e *Engine) sleepSubstituted(at *place) (slept bool) {
	s := &e.substitution
	if !s.state.CompareAndSwap(underWay, lent) {
		return true // Run waits for the engine
	}
	slept = at.sleep(&e.notifier.ended)
	for looks := 0; !s.state.CompareAndSwap(lent, underWay) && !s.state.CompareAndSwap(recalled, awaited); looks++ {
		// Another goroutine is in Dispatch: its function, and two passes at most.
		if looks < maxLooks {
			runtime.Gosched()
		} else {
			spin.Sleep(lookPause)
		}
	}
	return slept
}

// doRest does what is due after f. It returns false if Run must do more.
func (e *Engine) doRest() bool {
	if e.turns.Load() != nil {
		return false // f has connected a simulated context
	}
	e.deliver()
	e.endRegion()
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
