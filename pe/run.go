package pe

import (
	"context"
	"runtime"
	"time"
)

// Run drives the engine until every context is Idle and nothing is queued, and
// then returns nil; an engine with nothing to do returns at once, so start
// contexts, or queue a function that does with Do, before Run. Whether a context
// ended well is for its callbacks and Core.Err to say.
//
// With nothing to do, Run spins for Config.Spin and then sleeps without using
// the processor; where the clock stands still (testing/synctest) it soon sleeps.
// All callbacks run on its goroutine. Errors of misuse are those of Progress.
//
// When ctx ends, Run stops every context, drives them to Idle and returns
// context.Cause(ctx); contexts cannot be started meanwhile (ErrDraining). If all
// that remains are tasks that no callback freed, it does not hang but returns an
// error that matches both ErrTasksHeld and the cause; when they have been freed,
// Progress or another Run takes the contexts to Idle.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.acquire("call Run"); err != nil {
		return err
	}
	defer e.release()
	defer func() { e.draining = false }()
	done := ctx.Done()
	var quiet lull
	for {
		n := e.pass()
		select {
		case <-done:
			done = nil
			e.draining = true // the next pass stops the contexts
			continue
		default:
		}
		switch {
		case e.active == 0 && e.draining && e.changes.len() == 0 && e.due.len() == 0:
			return context.Cause(ctx)
		case e.active == 0 && !e.queued():
			return nil
		case n > 0:
			quiet = lull{}
			continue
		case e.draining && e.stuck():
			return heldError(e.contexts, context.Cause(ctx))
		}
		if quiet.shorter(e.spin) {
			runtime.Gosched()
			continue
		}
		e.sleep(done)
		quiet = lull{}
	}
}

// stillPasses is how long Run spins, in passes, while the clock shows the same
// time: in testing/synctest it does until Run sleeps.
const stillPasses = 2000

// lull is the time in which there was nothing to do.
type lull struct {
	since, now time.Time
	still      int // passes at this time
}

// shorter reports whether it has been shorter than limit so far.
func (l *lull) shorter(limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if l.still++; !now.Equal(l.now) {
		l.now, l.still = now, 0
	}
	return now.Sub(l.since) < limit && l.still < stillPasses
}

// stuck reports whether nothing but tasks that nobody frees keeps the contexts
// from Idle.
func (e *Engine) stuck() bool {
	if e.queued() || e.alarm.woken.Load() {
		return false
	}
	for _, c := range e.contexts {
		if c.State() != Idle && !c.held() {
			return false
		}
	}
	return true
}

// sleep blocks until there is something to do or done is closed.
func (e *Engine) sleep(done <-chan struct{}) {
	e.warnHeld()
	a := &e.alarm
	a.sleeping.Store(true)
	if e.armBackends() && !e.queued() && !a.woken.Load() {
		select {
		case <-a.bell:
		case <-done:
		}
	}
	a.sleeping.Store(false)
	select {
	case <-a.bell: // rung after all
	default:
	}
}

// warnHeld logs, once per stop, the contexts that wait for tasks to be freed.
func (e *Engine) warnHeld() {
	for _, c := range e.contexts {
		if !c.warned && c.held() {
			c.warned = true
			e.log.Warn().Str("context", c.name).Int("tasks", c.allocated).
				Msg("context stays in Stopping until its tasks are freed")
		}
	}
}
