package pe

import (
	"context"
	"runtime/trace"

	"github.com/verbena-rdma/verbena/internal/profiling"
)

// The names of regions.
const (
	functionRegion = "verbena function" // given to Do or Dispatch
	stateRegion    = "verbena state callback"
	waiterRegion   = "verbena waiter"
)

// call calls a function of the program: in a region of the trace, if there is a trace.
func (e *Engine) call(name string, f func()) {
	if profiling.Tracing() {
		e.traced(name, f)
		return
	}
	f()
}

// traced calls a callback in a region of the trace. The first one of a pass begins the region of the
// pass: most passes of an engine that polls have nothing to do, and would flood the trace.
func (e *Engine) traced(name string, f func()) {
	if e.region == nil && e.driven() { // else it is a call of the program that runs callbacks
		e.region = trace.StartRegion(context.Background(), "verbena pass")
	}
	returned := false
	defer func() {
		if !returned { // a panic ends the pass
			e.endRegion()
		}
	}()
	trace.WithRegion(context.Background(), name, f)
	returned = true
}

// endRegion ends the region of a pass, on the goroutine that began it.
func (e *Engine) endRegion() {
	if r := e.region; r != nil {
		e.region = nil
		r.End()
	}
}

// Traced calls a callback of the program, in a region of the trace with that name. Call it only while
// profiling.Tracing reports true.
func (s coreForFriends) Traced(name string, f func()) { s.engine.Load().traced(name, f) }
