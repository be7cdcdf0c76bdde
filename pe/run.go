package pe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Run drives the engine until every context is Idle and nothing is queued. An engine with
// nothing to do returns at once, so start contexts, or queue a function that starts them with
// Do, before Run. It returns the errors with which contexts have ended (Core.Err), joined,
// each once and with the name of its context; nil if there are none. These include the errors
// of contexts that were started again or closed meanwhile (the first 64), and errors given to
// Core.Fail before Run or in the callback that reports Idle.
//
// With nothing to do, Run spins (Config.Spin) and then sleeps without using the processor;
// where the clock stands still (testing/synctest) it soon sleeps. All callbacks run on its
// goroutine, except those that follow a function which Dispatch runs. Errors of misuse are those
// of Progress.
//
// A Running context keeps Run going, with or without work: a server serves until it is stopped
// or ctx ends. When ctx ends, Run stops every context, drives them to Idle, and returns the
// errors of contexts joined with context.Cause(ctx), in this order; contexts cannot be started
// meanwhile (ErrDraining).
//
// After that, if only tasks that no callback freed keep the contexts from becoming Idle, Run
// does not hang: it returns the errors of contexts and, after them, one that matches
// ErrTasksHeld. Run does so too a second after a context has failed, since a program that
// fails often leaves tasks behind. When the tasks have been freed, Progress or another Run
// takes the contexts to Idle.
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
	defer e.maySleepAtDevice(ctx)()
	e.takeTurn()
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
			e.spin.Found()
			continue
		case e.draining && e.onlyTasksHeld():
			return e.takeErrors(context.Cause(ctx))
		}
		if !e.wait(done) && e.onlyTasksHeld() {
			return e.takeErrors(nil)
		}
	}
}

// Done returns a channel that is closed when Run has returned or the engine is closed. After
// that, functions given to Do wait until Run, Progress or Close is called. Before the first
// Run, and during one, the channel is closed at the end of that Run. A later Run has another
// channel. Done may be called from any goroutine:
//
//	result := make(chan int, 1)
//	if err := engine.Do(func() { result <- look() }); err != nil {
//		return err
//	}
//	select {
//	case n := <-result:
//		use(n)
//	case <-engine.Done(): // the function waits for the next Run
//	}
func (e *Engine) Done() <-chan struct{} { return e.runs.channel() }

// runs counts the runs of the engine, for Engine.Done.
type runs struct {
	mu    sync.Mutex
	count int           // number of runs begun
	over  bool          // the last run has returned
	done  chan struct{} // for the current run, or the next; nil: not asked for
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

// begin begins a run, and returns its number.
func (r *runs) begin() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.over = false
	return r.count
}

// end ends a run, unless another one has begun meanwhile: the engine can be driven before end
// is called.
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

// drained reports whether a draining engine has no work left. Functions given to Do do not
// count, since they may keep coming for ever.
func (e *Engine) drained() bool {
	return e.draining && e.active == 0 && e.changes.Len() == 0 && e.pools.Len() == 0
}

// maxKeptErrors bounds the errors that a long Run keeps of contexts that fail and are started
// again.
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

// takeErrors returns the error of Run: first the errors of contexts, then why Run was asked to
// end, then the contexts that held tasks keep from becoming Idle.
func (e *Engine) takeErrors(cause error) error {
	for _, c := range e.contexts {
		c.unreturned = c.unreturned || c.err != nil && c.waitsForTasks() // report again why it waits
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
			errs = append(errs, fmt.Errorf("pe: %s cannot become Idle: %w: %d; free every allocated task, including those never submitted",
				c.object(), ErrTasksHeld, c.allocated))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// wait is called between passes that find nothing to do. It spins for a while, and then sleeps
// until there is something to do or done is closed. After a failure it returns false if there
// was nothing to do for tasksHeldTimeout.
func (e *Engine) wait(done <-chan struct{}) bool {
	if e.turns.Load() == nil && e.spin.KeepPolling(e.slice.now(), false) {
		e.spin.Yield()
		return true
	}
	more := e.sleep(done)
	e.spin.Woken(e.slice.now())
	return more
}

// tasksHeldTimeout is how long a failed context waits for other goroutines to free its tasks, with
// Do, before Run gives up.
const tasksHeldTimeout = time.Second

// failedWithTasksHeld reports whether a context has failed, and only tasks that were not freed keep
// the contexts from becoming Idle.
func (e *Engine) failedWithTasksHeld() bool {
	return slices.ContainsFunc(e.contexts, func(c *Core) bool { return c.err != nil && c.waitsForTasks() })
}

// onlyTasksHeld reports whether only tasks that were not freed keep the contexts from becoming
// Idle.
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

// sleep blocks until there is something to do or done is closed. Its result is that of wait.
func (e *Engine) sleep(done <-chan struct{}) (more bool) {
	e.warnOfTasksHeld()
	more = true
	var held <-chan time.Time
	if e.failedWithTasksHeld() {
		timer := time.NewTimer(tasksHeldTimeout)
		defer timer.Stop()
		held = timer.C
	}
	n := &e.notifier
	var at *place
	if held == nil {
		at = e.choosePlace()
	} else {
		e.leavePlace()
	}
	n.sleeping.Store(true)
	inTurn := true
	if e.armBackends() && !e.queued() && !n.woken.Load() {
		e.handover.taken.Store(at != nil)
		e.allowSubstitution()
		if at == nil || !e.sleepAtPlace(at) {
			select {
			case <-n.wakeup:
			case <-done:
				inTurn = false
			case <-held:
				more, inTurn = false, false
			}
		}
		e.endSubstitution()
	}
	n.sleeping.Store(false)
	if !inTurn {
		e.takeTurn()
	}
	n.ended.Store(false)
	select {
	case <-n.wakeup: // a wake-up came at the last moment
	default:
	}
	return more
}

// warnOfTasksHeld logs, once per stop, each context that waits for tasks to be freed.
func (e *Engine) warnOfTasksHeld() {
	for _, c := range e.contexts {
		if !c.warned && c.waitsForTasks() {
			c.warned = true
			e.log.Warn().Str("context", c.name).Int("tasks", c.allocated).
				Msg("context stays in Stopping until its tasks are freed")
		}
	}
}
