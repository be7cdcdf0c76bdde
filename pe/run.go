package pe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Run drives the engine until every context is Idle and nothing is queued. An
// engine with nothing to do returns at once, so start contexts, or queue a function
// that does with Do, before Run. It returns the errors with which contexts have
// ended (Core.Err), joined, each with the name of its context and each once; nil if
// there are none. Those of contexts that were started again or closed meanwhile
// count, and what was given to Core.Fail before Run or in the callback that reports
// Idle.
//
// With nothing to do, Run spins for Config.Spin and then sleeps without using
// the processor; where the clock stands still (testing/synctest) it soon sleeps.
// All callbacks run on its goroutine. Errors of misuse are those of Progress.
//
// When ctx ends, Run stops every context, drives them to Idle and returns
// context.Cause(ctx), joined with the errors of contexts; contexts cannot be started
// meanwhile (ErrDraining). If all that remains are tasks that no callback freed, it
// does not hang but returns an error that also matches ErrTasksHeld; when they have
// been freed, Progress or another Run takes the contexts to Idle.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.acquire("call Run"); err != nil {
		return err
	}
	defer e.release()
	e.running = true
	defer func() { e.running, e.draining = false, false }()
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
			return e.takeErrors(context.Cause(ctx))
		case e.active == 0 && !e.queued():
			return e.takeErrors(nil)
		case n > 0:
			quiet = lull{}
			continue
		case e.draining && e.stuck():
			return e.takeErrors(context.Cause(ctx))
		}
		if quiet.shorter(e.spin) {
			runtime.Gosched()
			continue
		}
		e.sleep(done)
		quiet = lull{}
	}
}

// keepError notes the error of a context for the Run that is under way, before the
// context is started again or leaves the engine.
func (e *Engine) keepError(c *Core) {
	if e.running && c.unreturned {
		c.unreturned = false
		e.failed = append(e.failed, fmt.Errorf("%s: %w", c.object(), c.err))
	}
}

// takeErrors is what Run returns: the errors of contexts, those that tasks keep
// from Idle, and why Run was told to end.
func (e *Engine) takeErrors(cause error) error {
	for _, c := range e.contexts {
		e.keepError(c)
	}
	errs := e.failed
	e.failed = nil
	for _, c := range e.contexts {
		if c.held() {
			errs = append(errs, fmt.Errorf("pe: %s cannot become Idle: %w: %d; free every allocated task, also those never submitted",
				c.object(), ErrTasksHeld, c.allocated))
		}
	}
	if cause != nil {
		errs = append(errs, cause)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
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
