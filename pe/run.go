package pe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Run drives the engine until every context is Idle and nothing is queued. An
// engine with nothing to do returns at once, so start contexts, or queue a function
// that does with Do, before Run. It returns the errors with which contexts have
// ended (Core.Err), joined, each with the name of its context and each once; nil if
// there are none. Those of contexts that were started again or closed meanwhile
// count (the first 64), and what was given to Core.Fail before Run or in the callback
// that reports Idle.
//
// With nothing to do, Run spins for Config.Spin and then sleeps without using
// the processor; where the clock stands still (testing/synctest) it soon sleeps.
// All callbacks run on its goroutine. Errors of misuse are those of Progress.
//
// When ctx ends, Run stops every context, drives them to Idle and returns
// context.Cause(ctx), joined with the errors of contexts, these first; contexts cannot be
// started meanwhile (ErrDraining). A context that is Running keeps Run going, whether it has
// work or not: so a server serves until ctx ends, or until it is stopped. If all that
// remains are tasks that no callback freed, Run does not hang but returns an error that
// also matches ErrTasksHeld, and says so behind what contexts have failed with; when the
// tasks have been freed, Progress or another Run takes the contexts to Idle. So it does
// where a context has failed, a second later: a program that fails often leaves tasks
// behind.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.acquire("call Run"); err != nil {
		return err
	}
	defer e.runs.end(e.runs.begin()) // when others can drive the engine
	defer e.release()
	e.keepsErrors = true
	defer func() { e.keepsErrors, e.draining = false, false }()
	if ctx == nil {
		ctx = context.Background()
	}
	done := ctx.Done()
	var spin spinTime
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
		case e.drained():
			return e.takeErrors(context.Cause(ctx))
		case e.active == 0 && !e.queued():
			return e.takeErrors(nil)
		case n > 0:
			spin = spinTime{}
			continue
		case e.draining && e.onlyTasksHeld():
			return e.takeErrors(context.Cause(ctx))
		}
		if !e.wait(&spin, done) && e.onlyTasksHeld() {
			return e.takeErrors(nil)
		}
	}
}

// Done returns a channel that is closed when Run has returned, or the engine is closed: from
// then on nobody runs the functions given to Do, until Run, Progress or Close is called. Before
// the first Run, and during one, it is closed at that Run's end. A later Run has another
// channel. It may be called from any goroutine:
//
//	result := make(chan int, 1)
//	if err := engine.Do(func() { result <- look() }); err != nil {
//		return err
//	}
//	select {
//	case n := <-result:
//		use(n)
//	case <-engine.Done(): // nobody calls the function
//	}
func (e *Engine) Done() <-chan struct{} {
	if e == nil {
		return endedRun()
	}
	return e.runs.channel()
}

// runs is what Engine.Done tells.
type runs struct {
	mu    sync.Mutex
	count int           // of runs that have begun
	over  bool          // the last of them has returned
	done  chan struct{} // of the run under way, or of the next one; nil: nobody has asked for it
}

func (r *runs) channel() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return endedRun()
	}
	if r.done == nil {
		r.done = make(chan struct{})
	}
	return r.done
}

// endedRun returns a channel that is closed.
func endedRun() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// begin begins a run, and returns which it is.
func (r *runs) begin() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.over = false
	return r.count
}

// end ends a run, unless another one has begun meanwhile: the engine is free already.
func (r *runs) end(run int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run != r.count {
		return
	}
	r.over = true
	if r.done != nil {
		close(r.done)
		r.done = nil
	}
}

// drained reports whether an engine that is draining has come to its end. Functions
// given to Do do not count: one may come after the other for ever.
func (e *Engine) drained() bool {
	return e.draining && e.active == 0 && e.changes.Len() == 0 && e.pools.Len() == 0
}

// maxKeptErrors bounds the errors of contexts that fail and are started again, in a
// Run that lasts.
const maxKeptErrors = 64

// keepError notes the error of a context for Run, before the context is started
// again or leaves the engine.
func (e *Engine) keepError(c *Core) {
	if !e.keepsErrors || !c.unreturned {
		return
	}
	c.unreturned = false
	if len(e.failed) == maxKeptErrors {
		e.moreFailed++
	} else {
		e.failed = append(e.failed, fmt.Errorf("%s: %w", c.object(), c.err))
	}
}

// takeErrors is what Run returns, the causes first: the errors of contexts, why Run was
// asked to end, the contexts that tasks keep from Idle.
func (e *Engine) takeErrors(cause error) error {
	for _, c := range e.contexts {
		c.unreturned = c.unreturned || c.err != nil && c.waitsForTasks() // why it waits, again
		e.keepError(c)
	}
	errs := e.failed
	if e.moreFailed > 0 {
		errs = append(errs, fmt.Errorf("and %d more", e.moreFailed))
	}
	e.failed, e.moreFailed = nil, 0
	if cause != nil {
		errs = append(errs, cause)
	}
	for _, c := range e.contexts {
		if c.waitsForTasks() {
			errs = append(errs, fmt.Errorf("pe: %s cannot become Idle: %w: %d; free every allocated task, also those never submitted",
				c.object(), ErrTasksHeld, c.allocated))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// maxStillPasses bounds spinning, in passes, while the clock shows the same time: in
// testing/synctest it does until the engine sleeps.
const maxStillPasses = 2000

// spinTime measures how long there has been nothing to do.
type spinTime struct {
	begin, now  time.Time
	stillPasses int // at this time
}

// over reports whether it has lasted for the limit.
func (s *spinTime) over(limit time.Duration) bool {
	if limit <= 0 {
		return true
	}
	now := time.Now()
	if s.begin.IsZero() {
		s.begin = now
	}
	if s.stillPasses++; !now.Equal(s.now) {
		s.now, s.stillPasses = now, 0
	}
	return now.Sub(s.begin) >= limit || s.stillPasses >= maxStillPasses
}

// wait is called between passes that find nothing to do. It spins for a while, and
// then sleeps until there is something to do or done is closed. It reports false if
// there was nothing for heldPatience, after a failure.
func (e *Engine) wait(s *spinTime, done <-chan struct{}) bool {
	if !s.over(e.spin) {
		runtime.Gosched()
		return true
	}
	*s = spinTime{}
	return e.sleep(done)
}

// heldPatience is how long other goroutines have to free the tasks, by Do, that keep
// a context that has failed from Idle.
const heldPatience = time.Second

// failedHolding reports whether a context has failed, and only tasks keep it from Idle.
func (e *Engine) failedHolding() bool {
	return slices.ContainsFunc(e.contexts, func(c *Core) bool { return c.err != nil && c.waitsForTasks() })
}

// onlyTasksHeld reports whether nothing but tasks that nobody frees keeps the
// contexts from Idle.
func (e *Engine) onlyTasksHeld() bool {
	if e.queued() || e.notifier.woken.Load() {
		return false
	}
	for _, c := range e.contexts {
		if c.State() != Idle && !c.waitsForTasks() {
			return false
		}
	}
	return true
}

// sleep blocks until there is something to do or done is closed, as wait has it.
func (e *Engine) sleep(done <-chan struct{}) (more bool) {
	e.warnOfTasksHeld()
	more = true
	var held <-chan time.Time
	if e.failedHolding() {
		timer := time.NewTimer(heldPatience)
		defer timer.Stop()
		held = timer.C
	}
	n := &e.notifier
	n.sleeping.Store(true)
	if e.armBackends() && !e.queued() && !n.woken.Load() {
		select {
		case <-n.wakeup:
		case <-done:
		case <-held:
			more = false
		}
	}
	n.sleeping.Store(false)
	select {
	case <-n.wakeup: // it came after all
	default:
	}
	return more
}

// warnOfTasksHeld logs, once per stop, the contexts that wait for tasks to be freed.
func (e *Engine) warnOfTasksHeld() {
	for _, c := range e.contexts {
		if !c.warned && c.waitsForTasks() {
			c.warned = true
			e.log.Warn().Str("context", c.name).Int("tasks", c.allocated).
				Msg("context stays in Stopping until its tasks are freed")
		}
	}
}
