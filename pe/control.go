package pe

import "github.com/rs/zerolog"

// Control is the implementer's half of a context; users of the context do not see it. NewCore
// makes it together with the Core. Wake and Log may be called from any goroutine; all other
// methods belong to the goroutine that drives the engine.
type Control struct{ core Core }

// Started takes the context from Starting to Running. It does nothing in any
// other state: the context may have been stopped meanwhile.
func (k *Control) Started() {
	c := &k.core
	if c.starting {
		c.started = true
		return
	}
	if c.State() == Starting {
		c.enter(Starting, Running)
	}
}

// Stopped reports that the backend has no work left at the device, and that all tasks in
// flight have come back. It has an effect only after Backend.Stop was called.
func (k *Control) Stopped() {
	c := &k.core
	if c.State() == Stopping && !c.stopDue {
		c.stopped = true
		c.advance()
	}
}

// Fail is Core.Fail for the backend: it reports an error after which the context cannot go on.
func (k *Control) Fail(err error) { k.core.fail(err) }

// Wake makes the engine call Backend.Progress soon, even if the engine sleeps. Call it after
// the work is visible to Progress, and when work is held back outside Progress. It may be
// called from any goroutine, in any state, at any rate; it allocates nothing and does not
// block.
func (k *Control) Wake() {
	if e := k.core.engine.Load(); e != nil {
		e.wake()
	}
}

// Log is the engine's logger (Config.Log), with the name of the context in each entry. It may be
// called from any goroutine. Without an engine, it is silent.
func (k *Control) Log() *zerolog.Logger {
	if log := k.core.log.Load(); log != nil {
		return log
	}
	return new(zerolog.Logger)
}

// Yield lets the goroutines that a callback has woken go on until they wait, if the context's
// device is a simulated one. Call it after each callback but those of tasks: the next End, and
// the end of Backend.Progress, do it for these.
func (k *Control) Yield() {
	k.core.taskEnded = false
	k.core.engine.Load().yield()
}

// Require returns nil if the context is in one of the legal states, and otherwise a
// *StateError, or ErrClosed after Close. op names the operation in the error: "export a
// connection".
func (k *Control) Require(op string, legal ...State) error {
	return k.core.require(op, legal...)
}

// Owned fails with ErrBusy if another goroutine is driving the context's engine
// right now.
func (k *Control) Owned(op string) error {
	if k.core.drivenElsewhere() {
		return errDrivenElsewhere(op)
	}
	return nil
}

// Check is Owned for calls that have no error to return. In programs built with the race
// detector it panics with an error that matches ErrBusy if another goroutine is driving the
// context's engine right now. In other programs it does nothing and costs nothing.
func (k *Control) Check(op string) {
	k.core.check(op)
}

// Begin puts a task of the context's pools in flight. Call it first when the task is
// submitted, and call Abort if posting fails afterwards. It fails if the context is neither
// Running, nor Starting with AllowStarting (*StateError), or if the task is in flight
// (ErrInUse) or not allocated (ErrFreed). op names the operation in the errors: "submit a
// write". In programs built with the race detector, Begin also fails with ErrBusy while another
// goroutine drives the engine.
func (k *Control) Begin(t *Task, op string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return errDrivenElsewhere(op)
	}
	if t.life != taskHeld || t.self != t || t.pool.control != k || !t.pool.legal() {
		return t.unusableError(k, op)
	}
	t.life = taskInFlight
	k.core.inFlight++
	return nil
}

// Abort undoes Begin: the task was not posted and remains the user's.
func (k *Control) Abort(t *Task) { k.End(t) }

// End takes the completed task out of flight: it is the user's again. Call it before the
// callback. It does nothing if the task is not in flight.
func (k *Control) End(t *Task) {
	if k.core.taskEnded {
		k.Yield()
	}
	k.core.taskEnded = true
	if t.life == taskInFlight {
		t.life = taskHeld
		k.core.inFlight--
	}
}

// MayChange fails if the user may not change the task: it is in flight (ErrInUse) or not
// allocated (ErrFreed). Call it first in each method that changes a task, in any state of the
// context. what names the changed part in the errors: "source". It allocates nothing unless it
// fails.
func (k *Control) MayChange(t *Task, what string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return errDrivenElsewhere("set the " + what)
	}
	if t.life != taskHeld || t.self != t || t.pool.control != k {
		return t.unusableError(k, "set the "+what)
	}
	return nil
}
