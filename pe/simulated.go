package pe

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/host"
)

// turns is the scheduler of an engine whose devices are simulated. Its goroutine goes on in
// turns that the simulation decides, so that a run can be repeated.
type turns struct{ host.Scheduler }

// schedulerOf returns the scheduler of a context's device. known is false if the backend does
// not name its host: such a context fits any engine.
func schedulerOf(c *Core) (s host.Scheduler, known bool) {
	b, known := c.backend.(interface{ Host() host.Host })
	if !known {
		return nil, false
	}
	return b.Host().Scheduler(), true
}

func simulation(s host.Scheduler) any {
	if s == nil {
		return nil
	}
	return s.Simulation()
}

// checkHost returns an error if the devices of a context and of the engine's other contexts
// have no time in common.
func (e *Engine) checkHost(c *Core) error {
	s, known := schedulerOf(c)
	if !known {
		return nil
	}
	for _, other := range e.contexts {
		o, known := schedulerOf(other)
		if known && simulation(o) != simulation(s) {
			return fmt.Errorf("pe: cannot connect %s: its device and that of %s are not of the same simulation, or only one is simulated: %w; use another engine",
				c.object(), other.object(), ErrInvalid)
		}
	}
	return nil
}

// joinHost makes the engine take its turns from the host of a context.
func (e *Engine) joinHost(c *Core) {
	s, _ := schedulerOf(c)
	if s == nil || e.turns.Load() != nil {
		return
	}
	e.turns.Store(&turns{s})
	s.Report(engineReport{e})
}

// yield lets the other goroutines of a simulation go on until they wait. e may be nil: the
// callback of a context that left its engine.
func (e *Engine) yield() {
	if e == nil {
		return
	}
	if t := e.turns.Load(); t != nil {
		t.Yield()
	}
}

// Turn is for packages that wait in place of a program, such as await: call it on the goroutine
// that waited, when something else than the engine has ended the wait, such as a context. If the
// engine's devices are simulated, it returns when all other goroutines wait. Otherwise it does
// nothing.
func (e *Engine) Turn() {
	if t := e.turns.Load(); t != nil {
		t.Turn()
	}
}

// engineReport is an engine as its simulation reports on it.
type engineReport struct{ e *Engine }

// String has a line for each context that is not Idle.
func (r engineReport) String() string {
	if r.e.closed.Load() {
		return ""
	}
	var b strings.Builder
	for _, c := range r.e.contexts {
		if c.State() != Idle {
			fmt.Fprintf(&b, "%v, %d tasks in flight, %d allocated\n", c, c.inFlight, c.allocated)
		}
	}
	if r.e.queued() {
		b.WriteString("an engine that nobody drives has work\n")
	}
	return b.String()
}
