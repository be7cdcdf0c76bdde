package pe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// CloseTimeout is how long Core.Close and Engine.Close drive the engine until contexts are
// Idle. A context whose device has failed gives up on the device after 10 s by default.
const CloseTimeout = 30 * time.Second

// Close destroys the context: it leaves its engine and cannot be started again. Close first
// stops a context that is not Idle, and drives its engine until the context is Idle, callbacks
// included, for at most CloseTimeout (ErrTimeout). Close then takes back the tasks that were
// not freed and drops what they hold; freeing such a task later fails with ErrFreed. Closing
// again does nothing.
//
// In a callback of the engine, Close is legal in Idle only (ErrReentrant), for example in the
// callback that reports Idle: a callback cannot wait for the engine that runs it. Pending
// state callbacks still run after Close. Close fails with ErrBusy while another goroutine
// drives the engine.
func (c *Core) Close() error {
	if c.closed {
		return nil
	}
	e := c.engine.Load()
	if e != nil {
		if err := e.owned("close " + c.object()); err != nil {
			return err
		}
		if c.State() != Idle {
			if err := e.driveToIdle(c); err != nil {
				return err
			}
		}
	}
	c.closed = true
	if e != nil {
		e.detach(c)
	}
	return nil
}

// driveToIdle stops a context, and drives the engine until the context has entered Idle and
// its state callback has run.
func (e *Engine) driveToIdle(c *Core) error {
	reentrant := fmt.Errorf("pe: cannot close %s: it is %v, and a callback cannot wait until it is Idle: %w; call Stop, and call Close when Idle is reported or when Run has returned",
		c.object(), c.State(), ErrReentrant)
	if e.drivenHere() {
		return reentrant
	}
	if err := e.acquire("close " + c.object()); err != nil {
		return err
	}
	defer e.release()
	if e.inBackend() {
		return reentrant
	}
	c.closing = true
	defer func() { c.closing = false }()
	c.stop()
	e.driveUntil(func() bool { return c.State() == Idle && c.unreported == 0 })
	e.notifyOfRest()
	if c.State() != Idle {
		return closeError(c)
	}
	return nil
}

// Close releases the engine. It stops the contexts that are not Idle and drives the engine
// until they are, as Core.Close does; no context can be started meanwhile (ErrDraining).
// Pending state callbacks and functions given to Do run first, inside Close. Then Close
// disconnects all contexts: they may be closed in any order, or be connected to another
// engine. If CloseTimeout passes, the engine stays open, and the error (ErrTimeout) names the
// contexts. Other errors are those of Progress. Closing again does nothing.
func (e *Engine) Close() error {
	if e.closed.Load() {
		return nil
	}
	if err := e.acquire("close the engine"); err != nil {
		return err
	}
	defer e.release()
	if e.inBackend() {
		return fmt.Errorf("pe: cannot close the engine inside a method of a backend: %w; return from the method first", ErrReentrant)
	}
	if e.active > 0 {
		if err := e.drain(); err != nil {
			return err
		}
	}
	// From here on nothing can be queued or started, so the loop ends.
	e.calls.close(&e.closing)
	for e.queued() {
		e.pass()
	}
	for _, c := range e.contexts {
		c.engine.Store(nil)
		c.unreturned = false
	}
	e.contexts = nil
	e.leaveHost()
	e.closed.Store(true)
	e.runs.end(e.runs.count) // none is under way
	return e.notifier.close()
}

// drain stops all contexts and drives them to Idle.
func (e *Engine) drain() error {
	e.draining = true // each pass stops the contexts
	defer func() { e.draining = false }()
	if e.driveUntil(e.drained) {
		return nil
	}
	var errs []error
	for _, c := range e.contexts {
		if c.State() != Idle {
			errs = append(errs, closeError(c))
		}
	}
	return errors.Join(errs...)
}

// driveUntil drives the engine until done returns true, and returns false if CloseTimeout
// passes first. It takes back the tasks of closing contexts that wait only for their tasks.
func (e *Engine) driveUntil(done func() bool) bool {
	e.keepsErrors = true
	defer func() { e.keepsErrors = false }()
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	defer e.maySleepAtDevice(ctx)()
	for !done() {
		held := e.closingAndHeld()
		n := e.pass()
		// The pass has run the pending callbacks and functions, which could have freed the
		// tasks.
		for _, c := range held {
			if c.waitsForTasks() {
				c.reclaimTasks()
				n++
			}
		}
		switch {
		case ctx.Err() != nil:
			return done()
		case n > 0:
			e.spin.Found()
		default:
			e.wait(ctx.Done())
		}
	}
	return true
}

// closingAndHeld returns the contexts that are being closed, have reported their states, and
// wait only for tasks to be freed.
func (e *Engine) closingAndHeld() []*Core {
	var list []*Core
	for _, c := range e.contexts {
		if (c.closing || e.draining) && c.waitsForTasks() && c.unreported == 0 {
			list = append(list, c)
		}
	}
	return list
}

// inBackend reports whether a method of a backend is running. Call it directly after acquiring
// the engine: a backend method that runs then was called outside Progress, by Core.Start,
// Core.Stop or Pool.Free.
func (e *Engine) inBackend() bool {
	for _, c := range e.contexts {
		if c.inBackend {
			return true
		}
	}
	return false
}

// closeError says why a context did not become Idle, after the error it failed with.
func closeError(c *Core) error {
	var missing []string
	if c.inFlight > 0 {
		missing = append(missing, fmt.Sprintf("tasks in flight: %d", c.inFlight))
	}
	if c.State() == Stopping && !c.stopped {
		missing = append(missing, "its backend has not stopped")
	}
	if n := c.allocated - c.inFlight; n > 0 {
		missing = append(missing, fmt.Sprintf("tasks not freed: %d", n))
	}
	err := fmt.Errorf("pe: cannot close %s: it is %v, %v after it was stopped: %w: %s; close again to wait longer",
		c.object(), c.State(), CloseTimeout, ErrTimeout, strings.Join(missing, ", "))
	if c.err != nil {
		return errors.Join(fmt.Errorf("%s: %w", c.object(), c.err), err)
	}
	return err
}
