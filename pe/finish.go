package pe

import "slices"

// StopWhenDone stops the context when none of its tasks is allocated and no Waiter waits for
// one: at once if that holds now, and otherwise when the last task has been freed. Until then
// the context goes on as before: tasks may be submitted again, and others allocated. It is for
// programs that submit all their work and need not count what is left:
//
//	for ... {
//		task, err := writes.Write(...)
//		r.Fail(pe.SubmitOrFree(task, err))
//	}
//	r.StopWhenDone() // the callbacks of the tasks free them
//
// A task that is never freed keeps the context Running; Stop and Fail take precedence. In Idle
// and Stopping it does nothing, and Start cancels it. It fails like Stop.
func (c *Core) StopWhenDone() error {
	e := c.Engine()
	if e == nil {
		return nil // such a context is Idle
	}
	if err := e.owned("stop " + c.object()); err != nil {
		return err
	}
	if s := c.State(); s == Starting || s == Running {
		c.stopWhenDone = true
		c.stopIfDone()
	}
	return nil
}

// stopIfDone stops the context if StopWhenDone was called, and no task is allocated or waited
// for.
func (c *Core) stopIfDone() {
	if c.stopWhenDone { // small enough to be inlined: it is called for each task
		c.stopUnlessUsed()
	}
}

func (c *Core) stopUnlessUsed() {
	waited := func(p *pool) bool { return p.waiters.Len() > 0 }
	if c.allocated == 0 && !slices.ContainsFunc(c.pools, waited) {
		c.stopWhenDone = false
		c.stop()
	}
}

// FreeTask is a callback of success for pools: it frees the task. Use it for tasks that need
// no work on success.
//
//	sends, err := r.Pool(16, pe.FreeTask, pe.FailContext)
func FreeTask[T Submittable](t T) { t.Core().Fail(t.Free()) }

// FailContext is a callback of failure for pools: it fails the task's context with the error
// (Core.Fail), which stops the context, and frees the task. Use it in programs that cannot go
// on when one of their tasks has failed.
//
//	writes, err := r.Pool(16, written, pe.FailContext)
func FailContext[T Submittable](t T, err error) {
	c := t.Core()
	c.Fail(err)
	c.Fail(t.Free())
}
