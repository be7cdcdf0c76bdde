package attack

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// durationVariable is the environment variable that sets the duration of each attack.
const durationVariable = "VERBENA_ATTACK"

// TestAttacks carries out every attack of the table.
func TestAttacks(t *testing.T) {
	duration, short := 100*time.Millisecond, true
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err, "%s is %q; it takes a time such as 10s", durationVariable, text)
		short = false
	}
	// Cases with the same scenario share their victims. In make test, scenarios run side by
	// side, each in a network of its own, which takes root.
	var scenarios []scenario
	for i := range attackCases {
		if at := attackCases[i].scenario; !slices.Contains(scenarios, at) {
			scenarios = append(scenarios, at)
		}
	}
	slices.SortStableFunc(scenarios, func(a, b scenario) int { return int(a.topology - b.topology) })
	var table []string
	for _, at := range scenarios {
		name := topologies[at.topology]
		t.Run(name, func(t *testing.T) {
			if short && os.Getuid() == 0 {
				t.Parallel()
			}
			s := newSetup(t, at)
			if !short {
				s.pin()
			}
			for i := range attackCases {
				if r := &attackCases[i]; r.scenario == at {
					t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
						s.prepare(t, r)
						res := s.attack(r, duration, short)
						if !short {
							table = append(table, r.line(name, &res))
						}
						r.check(t, &res)
					})
				}
			}
		})
	}
	if !short {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "\nwhere\tattack\tpackets\ta second\texchanges a second\tachieved\tallowed\n%s\n", strings.Join(table, "\n"))
		_ = w.Flush()
	}
}

// line returns the case's row of the table that is printed in the end.
func (r *attackCase) line(where string, res *result) string {
	allowed := []string{"nothing"}
	if len(r.allowed) > 0 {
		allowed = nil
	}
	for _, h := range r.allowed {
		allowed = append(allowed, string(h))
	}
	achieved := slices.Sorted(maps.Keys(res.achieved))
	if len(achieved) == 0 {
		achieved = []harm{"nothing"}
	}
	return fmt.Sprintf("%s\t%s\t%d\t%.0f\t%.0f, %s\t%s\t%s", where, r.name, res.sent, res.rate(), res.during, res.describeRates(),
		strings.Trim(fmt.Sprint(achieved), "[]"), strings.Join(allowed, ", "))
}

// check fails the test if the attack has achieved more than it may.
func (r *attackCase) check(t *testing.T, res *result) {
	t.Logf("%d packets, %.0f a second; exchanges a second: %s, %.0f beside the attack; achieved: %s", res.sent, res.rate(), res.describeRates(), res.during, res.describe())
	assert.Empty(t, r.excess(res.achieved), "what it may not achieve")
	for _, h := range r.required {
		assert.Contains(t, res.achieved, h, "without which the attack is none elsewhere either")
	}
	assert.True(t, len(res.achieved) > 0 || r.countersGrew(res.counters), "no counter of %v has grown", r.counters)
}

// describeRates returns the rates of the busy connection without the attack.
func (res *result) describeRates() string {
	text := fmt.Sprintf("%.0f before", res.before)
	if res.besideDecoys != 0 {
		text += fmt.Sprintf(", %.0f beside the same packets sent elsewhere", res.besideDecoys)
	}
	return text
}

// countersGrew reports whether one of the counters has grown, and no harm is required.
func (r *attackCase) countersGrew(grown map[string]uint64) bool {
	return len(r.required) == 0 && (len(r.counters) == 0 || slices.ContainsFunc(r.counters, func(name string) bool { return grown[name] > 0 }))
}
