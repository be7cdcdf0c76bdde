package backend

import (
	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// Control is the implementer's half of a context; users of the context do not see it. New makes it
// together with the Core. Wake and Log may be called from any goroutine; all other methods belong to
// the goroutine that drives the engine.
type Control struct{ core *pe.Core }

// Started takes the context from Starting to Running. It does nothing in any
// other state: the context may have been stopped meanwhile.
func (k Control) Started() { k.core.Friends(friend.Package{}).Started() }

// Stopped reports that the backend has no work left at the device, and that all tasks in
// flight have come back. It has an effect only after Backend.Stop was called.
func (k Control) Stopped() { k.core.Friends(friend.Package{}).Stopped() }

// Fail is pe.Core.Fail for the backend: it reports an error after which the context cannot go on.
func (k Control) Fail(err error) { k.core.Friends(friend.Package{}).Fail(err) }

// Wake makes the engine call Backend.Progress soon, even if the engine sleeps. Call it after
// the work is visible to Progress, and when work is held back outside Progress. It may be
// called from any goroutine, in any state, at any rate; it allocates nothing and does not
// block.
func (k Control) Wake() { k.core.Friends(friend.Package{}).Wake() }

// Log is the engine's logger (Config.Log), with the name of the context in each entry. It may be
// called from any goroutine. Without an engine, it is silent.
func (k Control) Log() *zerolog.Logger {
	return k.core.Friends(friend.Package{}).Log()
}

// Yield lets the goroutines that a callback has woken go on until they wait, if the context's
// device is a simulated one. Call it after each callback but those of tasks: the next End, and
// the end of Backend.Progress, do it for these.
func (k Control) Yield() { k.core.Friends(friend.Package{}).Yield() }

// Require returns nil if the context is in one of the legal states, and otherwise a
// *pe.StateError, or pe.ErrClosed after Close. op names the operation in the error: "export a
// connection".
func (k Control) Require(op string, legal ...pe.State) error {
	return k.core.Friends(friend.Package{}).Require(op, legal...)
}

// Owned fails with pe.ErrBusy if another goroutine is driving the context's engine
// right now.
func (k Control) Owned(op string) error {
	return k.core.Friends(friend.Package{}).Owned(op)
}

// Check is Owned for calls that have no error to return. In programs built with the race
// detector it panics with an error that matches pe.ErrBusy if another goroutine is driving the
// context's engine right now. In other programs it does nothing and costs nothing.
func (k Control) Check(op string) { k.core.Friends(friend.Package{}).Check(op) }

// Begin puts a task of the context's pools in flight. Call it first when the task is
// submitted, and call End if posting fails afterwards. It fails if the context is neither
// Running, nor Starting with AllowStarting (*pe.StateError), or if the task is in flight
// (pe.ErrInUse) or not allocated (pe.ErrFreed). op names the operation in the errors: "submit a
// write". In programs built with the race detector, Begin also fails with pe.ErrBusy while another
// goroutine drives the engine.
func (k Control) Begin(t *pe.Task, op string) error {
	return k.core.Friends(friend.Package{}).Begin(t, op)
}

// End takes a task out of flight: it is the user's again. Call it for a completed task before the
// callback, and for one that could not be posted. It does nothing if the task is not in flight.
func (k Control) End(t *pe.Task) { k.core.Friends(friend.Package{}).End(t) }

// MayChange fails if the user may not change the task: it is in flight (pe.ErrInUse) or not
// allocated (pe.ErrFreed). Call it first in each method that changes a task, in any state of the
// context. what names the changed part in the errors: "source". It allocates nothing unless it
// fails.
func (k Control) MayChange(t *pe.Task, what string) error {
	return k.core.Friends(friend.Package{}).MayChange(t, what)
}
