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

// durationVariable is how long each attack takes.
const durationVariable = "VERBENA_ATTACK"

// TestAttacks carries out every attack of the table.
func TestAttacks(t *testing.T) {
	duration, moment := 100*time.Millisecond, true
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err, "%s is %q; it takes a time such as 10s", durationVariable, text)
		moment = false
	}
	var table []string
	for at, name := range []string{oneHost: "one host", oneHost6: "one host by IPv6", hosts: "three hosts", containers: "containers", container: "a container", unmapped: "unmapped users"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, place(at))
			if !moment {
				s.pin()
			}
			for i := range rows {
				if r := &rows[i]; r.place == place(at) {
					t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
						s.prepare(t, r)
						res := s.attack(r, duration, moment)
						table = append(table, r.line(name, &res))
						r.check(t, &res)
					})
				}
			}
		})
	}
	if !moment {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "\nwhere\tattack\tpackets\ta second\texchanges a second\tachieved\tallowed\n%s\n", strings.Join(table, "\n"))
		_ = w.Flush()
	}
}

// line is the row of the table that is printed in the end.
func (r *row) line(where string, res *result) string {
	allowed := []string{"nothing"}
	if len(r.may) > 0 {
		allowed = nil
	}
	for _, h := range r.may {
		allowed = append(allowed, string(h))
	}
	achieved := slices.Sorted(maps.Keys(res.achieved))
	if len(achieved) == 0 {
		achieved = []harm{"nothing"}
	}
	return fmt.Sprintf("%s\t%s\t%d\t%.0f\t%.0f, %s\t%s\t%s", where, r.name, res.sent, res.rate(), res.during, res.quiet(),
		strings.Trim(fmt.Sprint(achieved), "[]"), strings.Join(allowed, ", "))
}

// check fails the test if the attack has achieved more than it may.
func (r *row) check(t *testing.T, res *result) {
	t.Logf("%d packets, %.0f a second; exchanges a second: %s, %.0f beside the attack; achieved: %s", res.sent, res.rate(), res.quiet(), res.during, res.describe())
	assert.Empty(t, r.excess(res.achieved), "what it may not achieve")
	for _, h := range r.must {
		assert.Contains(t, res.achieved, h, "without which the attack is none elsewhere either")
	}
	assert.True(t, len(res.achieved) > 0 || r.noticed(res.counters), "no counter of %v has grown", r.counted)
}

// quiet is the pace of the busy connection without the attack.
func (res *result) quiet() string {
	text := fmt.Sprintf("%.0f before", res.before)
	if res.elsewhere != 0 {
		text += fmt.Sprintf(", %.0f beside the same packets sent elsewhere", res.elsewhere)
	}
	return text
}

// noticed reports whether a counter that is to grow has, and no harm is waited for.
func (r *row) noticed(grown map[string]uint64) bool {
	return len(r.must) == 0 && (len(r.counted) == 0 || slices.ContainsFunc(r.counted, func(name string) bool { return grown[name] > 0 }))
}
