package pe

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/host"
)

// turns is the scheduler of an engine whose devices are simulated. Its goroutine goes on in
// turns that the simulation decides, so that a run can be repeated.
type turns struct {
	host.Scheduler
	ticket uint64 // for when the engine goes on for another reason
	remove func() // the engine from the report of its host
}

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

// joinHost makes the engine take its turns from the host of its first context with a simulated
// device, and reports whether there is one.
func (e *Engine) joinHost() bool {
	for _, c := range e.contexts {
		s, _ := schedulerOf(c)
		if s == nil {
			continue
		}
		if t := e.turns.Load(); t == nil || t.Scheduler != s {
			e.leaveHost()
			e.turns.Store(&turns{s, s.Ticket(), s.Report(engineReport{e})})
		}
		return true
	}
	return false
}

// leaveHost ends what joinHost began. An engine that loses its last context stays with the host
// until another context comes: callbacks that have closed the context end in their turn.
func (e *Engine) leaveHost() {
	if t := e.turns.Swap(nil); t != nil {
		t.remove()
	}
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

// takeTurn waits for the turn of an engine that goes on for another reason.
func (e *Engine) takeTurn() {
	if t := e.turns.Load(); t != nil {
		t.Turn(t.ticket)
	}
}

// engineReport is an engine as its simulation reports on it.
type engineReport struct{ e *Engine }

// String has a line for each context that is not Idle.
func (r engineReport) String() string {
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
