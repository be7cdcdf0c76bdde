package pe

import "github.com/rs/zerolog"

// The methods of a context that implement backend.Control, which describes them.

// Started is backend.Control.Started.
func (k coreForFriends) Started() {
	c := k.Core
	if c.starting {
		c.started = true
		return
	}
	if c.State() == Starting {
		c.enter(Starting, Running)
	}
}

// Stopped is backend.Control.Stopped.
func (k coreForFriends) Stopped() {
	c := k.Core
	if c.State() == Stopping && !c.stopDue {
		c.stopped = true
		c.advance()
	}
}

// Fail is backend.Control.Fail.
func (k coreForFriends) Fail(err error) { k.fail(err) }

// Wake is backend.Control.Wake.
func (k coreForFriends) Wake() {
	if e := k.engine.Load(); e != nil {
		e.wake()
	}
}

// Log is backend.Control.Log.
func (k coreForFriends) Log() *zerolog.Logger {
	if log := k.log.Load(); log != nil {
		return log
	}
	return new(zerolog.Logger)
}

// Yield is backend.Control.Yield.
func (k coreForFriends) Yield() {
	k.taskEnded = false
	k.engine.Load().yield()
}

// Require is backend.Control.Require.
func (k coreForFriends) Require(op string, legal ...State) error {
	return k.require(op, legal...)
}

// Owned is backend.Control.Owned.
func (k coreForFriends) Owned(op string) error {
	if k.drivenElsewhere() {
		return errDrivenElsewhere(op)
	}
	return nil
}

// Check is backend.Control.Check.
func (k coreForFriends) Check(op string) {
	k.check(op)
}

// Begin is backend.Control.Begin.
func (k coreForFriends) Begin(t *Task, op string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return errDrivenElsewhere(op)
	}
	if t.life != taskHeld || t.self != t || t.pool.core != k.Core || !t.pool.legal() {
		return t.unusableError(k.Core, op)
	}
	t.life = taskInFlight
	k.inFlight++
	return nil
}

// End is backend.Control.End.
func (k coreForFriends) End(t *Task) {
	if k.taskEnded {
		k.Yield()
	}
	k.taskEnded = true
	if t.life == taskInFlight {
		t.life = taskHeld
		k.inFlight--
	}
}

// MayChange is backend.Control.MayChange.
func (k coreForFriends) MayChange(t *Task, what string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return errDrivenElsewhere("set the " + what)
	}
	if t.life != taskHeld || t.self != t || t.pool.core != k.Core {
		return t.unusableError(k.Core, "set the "+what)
	}
	return nil
}
