package attack

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// durationVariable is how long each attack takes.
const durationVariable = "VERBENA_ATTACK"

// TestAttacks carries out every attack of the table.
func TestAttacks(t *testing.T) {
	duration, moment := 200*time.Millisecond, true
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err, "%s is %q; it takes a time such as 10s", durationVariable, text)
		moment = false
	}
	for at, name := range []string{oneHost: "one host", oneHost6: "one host by IPv6", hosts: "three hosts"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, place(at))
			for i := range rows {
				if r := &rows[i]; r.place == place(at) {
					t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
						s.prepare(t, r)
						r.check(t, s.attack(r, duration, moment))
					})
				}
			}
		})
	}
}

// check fails the test if the attack has achieved more than it may.
func (r *row) check(t *testing.T, res result) {
	t.Logf("%d packets, %.0f a second; exchanges a second %.0f before and %.0f meanwhile; achieved: %s", res.sent, res.rate(), res.before, res.during, res.describe())
	for _, problem := range r.judge(res.achieved) {
		assert.Fail(t, problem)
	}
	counted := len(r.counted) == 0 || len(res.achieved) > 0
	for _, name := range r.counted {
		counted = counted || res.counters[name] > 0
	}
	assert.True(t, counted, "no counter of %v has grown", r.counted)
}
