package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Sometimes names a state that some runs should reach, such as a server with no room for another client: a
// search that never gets there proves little. It notes that cond has been true, or that it has not yet.
// Over all seeds of a [Check], each name must have been true once: a Check of at least 200 seeds fails
// otherwise, and one of fewer logs it. The flag -sim.coverage prints how often each was true.
func (s *Sim) Sometimes(cond bool, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reached == nil {
		s.reached = make(map[string]int)
	}
	n := s.reached[name]
	if cond {
		n++
	}
	s.reached[name] = n
}

// Reached is Sometimes with true, for a place in the code. A name that no run reaches is not known, so
// name it at the beginning of the test, too, by Sometimes with false.
func (s *Sim) Reached(name string) { s.Sometimes(true, name) }

// coverageSeeds is how many seeds should reach every state.
const coverageSeeds = 200

// coverage is how often states were reached in the runs of a Check.
type coverage struct {
	mu     sync.Mutex
	runs   int
	states map[string]reached
}

type reached struct{ times, runs int }

// add adds a run that has ended. Its lock is not free if a condition has ended it.
func (c *coverage) add(s *Sim) {
	if s == nil { // go test has left it out
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs++
	if c.states == nil {
		c.states = make(map[string]reached)
	}
	for name, n := range s.reached {
		r := c.states[name]
		c.states[name] = reached{r.times + n, r.runs + min(n, 1)}
	}
}

// report prints what was not reached, or all states.
func (c *coverage) report(t testing.TB, all bool) {
	t.Helper()
	var lines, never []string
	for _, name := range slices.Sorted(maps.Keys(c.states)) {
		r := c.states[name]
		lines = append(lines, fmt.Sprintf("%8d times in %5d of %d seeds: %s", r.times, r.runs, c.runs, name))
		if r.runs == 0 {
			never = append(never, name)
		}
	}
	if all {
		t.Logf("sim: states reached:\n%s", strings.Join(lines, "\n"))
	}
	switch text := fmt.Sprintf("sim: never in %d seeds: %s", c.runs, strings.Join(never, "; ")); {
	case len(never) == 0 || t.Failed():
	case c.runs >= coverageSeeds:
		t.Error(text)
	default:
		t.Log(text)
	}
}
