package pe

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

// loan lets another goroutine drive the engine while Run, or a Close that drives the engine,
// sleeps. Whoever changes its state from offered drives the engine. (While Run spins, it takes up
// queued functions soon, and those of several goroutines together.)
type loan struct {
	state  atomic.Int32
	back   chan struct{} // has room for one: the engine, for a Run that has recalled it
	lender uintptr       // ID of the goroutine that sleeps, while another one drives the engine
}

// The states of a loan.
const (
	notLent  int32 = iota
	offered        // Run sleeps
	borrowed       // another goroutine drives the engine; Run sleeps
	recalled       // another goroutine drives the engine; Run waits for it
)

// lend is called before Run sleeps, with armed backends.
func (e *Engine) lend() { e.loan.state.Store(offered) }

// takeBack ends lend. It waits for a goroutine that drives the engine.
func (e *Engine) takeBack() {
	l := &e.loan
	for !l.state.CompareAndSwap(offered, notLent) {
		if l.state.CompareAndSwap(borrowed, recalled) {
			<-l.back
			return
		}
	}
}

// maxBorrowedPasses bounds the work that a goroutine does for others after its own function.
const maxBorrowedPasses = 2

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
	if !e.borrow() {
		return e.Do(f)
	}
	e.runBorrowed(f)
	return nil
}

// borrow makes the calling goroutine the one that drives the engine, if Run sleeps and no function
// was queued before.
func (e *Engine) borrow() bool {
	l := &e.loan
	if e.turns.Load() != nil || l.state.Load() != offered || !l.state.CompareAndSwap(offered, borrowed) {
		return false
	}
	if e.turns.Load() != nil || e.calls.pending() {
		e.giveBack()
		return false
	}
	l.lender = e.driver.Swap(uintptr(goroutine.Current()))
	e.notifier.sleeping.Store(false) // from here on, calls of wake are for this goroutine
	return true
}

func (e *Engine) giveBack() {
	l := &e.loan
	if !l.state.CompareAndSwap(borrowed, offered) {
		l.state.Store(notLent)
		l.back <- struct{}{}
	}
}

// runBorrowed runs f, and gives the engine back, even after a panic or runtime.Goexit.
func (e *Engine) runBorrowed(f func()) {
	settled := false
	defer func() {
		if !settled {
			e.endSleep()
		}
		e.driver.Store(e.loan.lender)
		e.giveBack()
	}()
	f()
	settled = e.settle()
}

// settle does what is due after a borrowed turn. It returns false if Run must do the rest.
func (e *Engine) settle() bool {
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
		if passes == maxBorrowedPasses {
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
