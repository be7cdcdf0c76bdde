// Package backend is for those who write a kind of context that a progress engine drives, as packages
// rdma, dma and graph do: timers, files, accelerators, anything whose work completes later. Programs
// that only use contexts need package pe alone.
//
// Write the work as a [Backend]. [New] makes the two halves of a context: the type that users see
// embeds the [*pe.Core]; its implementer keeps the [Control], which moves the context and its tasks.
//
// If there are tasks, embed a [pe.Task] in each kind, and take them from a pool of [NewPool]. Submission
// calls [Control.Begin] and posts; the backend's Progress calls [Control.End] and then the callback. The
// example of Backend is a whole context.
package backend

import (
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// Backend is implemented by each kind of context: it does the work, and the Core keeps the
// states. Implement it on an unexported type: on the type that embeds the Core, its Start and
// Stop would hide those of the Core.
//
// The engine calls all methods on the goroutine that drives it. pe.Core.Start calls Start on that
// goroutine too, and pe.Core.Stop and pe.Pool.Free call Stop and Idle. Calls to one backend never
// nest: when a callback inside Progress stops the context, Stop is called after Progress has
// returned.
type Backend interface {
	// Start acquires what the context needs to run. It returns true if the context is Running
	// at once, and false if it is Starting until Control.Started is called. On an error it
	// releases what it acquired, and the context stays Idle. It must not block or run
	// callbacks.
	Start() (running bool, err error)

	// Progress does a bounded amount of work and returns the number of completions and other
	// events it handled. It posts work held back by pe.Aggregate, and for each completed task
	// calls Control.End and then the callback. Each pass of the engine calls it once while the
	// context is Starting, Running or Stopping.
	Progress() int

	// Arm is called when the engine is about to sleep. It arranges a call of Control.Wake for
	// when there is something to do, and returns true. If there is something to do already
	// (completions not handled, reports held back, work not posted) it arms nothing and
	// returns false. It may be called again while armed.
	Arm() (armed bool)

	// Stop is called once after the context entered Stopping, by pe.Core.Stop or pe.Core.Fail. It
	// ends everything in flight: later calls of Progress, not Stop, return the tasks through
	// their error callbacks. When no work is left at the device, the backend calls
	// Control.Stopped, inside Stop or later.
	Stop()

	// Idle releases what Start acquired. It is called after Control.Stopped, when no task of
	// the context's pools is allocated. The context becomes Idle when it returns.
	Idle()
}

// New makes the two halves of a context that does its work in b: the Core, which the type that users
// see embeds, and the Control, which its implementer keeps private. The name appears in errors and
// logs.
func New(name string, b Backend) (*pe.Core, Control) {
	core := new(pe.Core)
	core.Friends(friend.Package{}).Init(name, b)
	return core, Control{core}
}
