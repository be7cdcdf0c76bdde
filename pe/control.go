package pe

// Control is the half of a context that its maker keeps: NewCore makes one
// together with the Core. It is not for the users of the context. Wake may be
// called from any goroutine; everything else belongs to the goroutine that drives
// the engine.
type Control struct{ core Core }

// Started takes the context from Starting to Running. It does nothing in any
// other state: the context may have been stopped meanwhile.
func (k *Control) Started() {
	if k == nil {
		return
	}
	c := &k.core
	if c.starting {
		c.started = true
		return
	}
	if c.State() == Starting {
		c.enter(Starting, Running)
	}
}

// Stopped says that the backend has no work left at the device, and that all
// tasks that were in flight have come back. It counts only after Backend.Stop
// was called.
func (k *Control) Stopped() {
	if k == nil {
		return
	}
	c := &k.core
	if c.State() == Stopping && !c.stopDue {
		c.stopped = true
		c.advance()
	}
}

// Fail is Core.Fail for the backend: it reports an error that the context cannot
// go on after.
func (k *Control) Fail(err error) {
	if k != nil {
		k.core.fail(err)
	}
}

// Wake makes the engine call Backend.Progress soon, even if it sleeps. Call it
// after the thing to be handled has become visible to Progress, and when work is
// held back outside Progress. It may be called from any goroutine, in any state, at
// any rate; it allocates nothing and does not block.
func (k *Control) Wake() {
	if k == nil {
		return
	}
	if e := k.core.engine.Load(); e != nil {
		e.wake()
	}
}

// Require returns nil if the context is in one of the legal states, and
// otherwise a *StateError, or ErrClosed after Close. The operation is for the
// error: "export a connection". With a nil Control, that of a context that was not made
// as it should, it fails with ErrInvalid, and so does Owned.
func (k *Control) Require(op string, legal ...State) error {
	if k == nil {
		return unmade(op)
	}
	return k.core.require(op, legal...)
}

// Owned fails with ErrBusy if another goroutine is driving the context's engine
// right now.
func (k *Control) Owned(op string) error {
	if k == nil {
		return unmade(op)
	}
	if k.core.drivenElsewhere() {
		return elsewhere(op)
	}
	return nil
}

// Check panics with an error that matches ErrBusy, in programs built with the race detector,
// if another goroutine is driving the context's engine right now. In other programs it does
// nothing, and costs nothing. It is for calls that have no error to return.
func (k *Control) Check(op string) {
	if checksGoroutine && k != nil {
		k.core.check(op)
	}
}

// Begin puts a task of the context's pools in flight. Call it first when the task
// is submitted, and Abort if posting fails afterwards. It fails if the context is
// not Running, or Starting where that is allowed (*StateError), the task is in flight
// (ErrInUse) or not allocated (ErrFreed). The operation is for the errors: "submit a
// write". A task that came from no pool fails with a nil Control too. Programs built
// with the race detector also get ErrBusy while another goroutine drives the engine.
func (k *Control) Begin(t *Task, op string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return elsewhere(op)
	}
	if t == nil || t.life != taskHeld || t.self != t || t.pool.control != k || !t.pool.legal() {
		return t.refuse(k, op)
	}
	t.life = taskInFlight
	k.core.inFlight++
	return nil
}

// Abort takes back Begin: the task was not posted and remains the user's.
func (k *Control) Abort(t *Task) { k.End(t) }

// End takes the task out of flight: it is completed, and the user's again. Call it
// before the callback is run. It does nothing if the task is not in flight.
func (k *Control) End(t *Task) {
	if k != nil && t != nil && t.life == taskInFlight {
		t.life = taskHeld
		k.core.inFlight--
	}
}

// MayChange fails unless the task is the user's: in flight (ErrInUse) or not
// allocated (ErrFreed). Call it first in what changes a task, in any state of the
// context. What is changed is for the errors: "source". It allocates nothing unless
// it fails. A task that came from no pool fails with a nil Control too.
func (k *Control) MayChange(t *Task, what string) error {
	if checksGoroutine && t.drivenElsewhere() {
		return elsewhere("set the " + what)
	}
	if t == nil || t.life != taskHeld || t.self != t || t.pool.control != k {
		return t.refuse(k, "set the "+what)
	}
	return nil
}
