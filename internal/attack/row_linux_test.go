package attack

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// harm is what an attack can do to its victims. That they become slow is none.
type harm string

const (
	injected  harm = "injected"  // data is wrong, or came from nobody who was to send it
	ended     harm = "ended"     // a connection of others has ended, or stands still
	leaked    harm = "leaked"    // memory was read without its key
	guessed   harm = "guessed"   // keys can be tried without limit
	amplified harm = "amplified" // far more was sent to who is silent than he has asked for lately
	refused   harm = "refused"   // new peers are not served, also when the attack is over
	accepted  harm = "accepted"  // what should have been refused was taken
	died      harm = "died"      // the process of a victim has ended
)

// hole is a finding of the list in docs/security.md: as long as it is open, the attack
// achieves this harm. One that is sure does so every time.
type hole struct {
	harm    harm
	finding int
	sure    bool
}

// row is an attack.
type row struct {
	name string
	does string
	scene
	from    vantage
	run     func(a *attacker) error
	may     []harm   // what it may achieve
	holes   []hole   // what it may achieve until they are mended
	counted []string // counters of the victims; at least one counts what was refused
}

// judge compares what an attack has achieved with what it may.
func (r *row) judge(achieved map[harm]string) (problems []string) {
	for _, h := range slices.Sorted(maps.Keys(achieved)) {
		if !slices.Contains(r.may, h) && !slices.ContainsFunc(r.holes, func(o hole) bool { return o.harm == h }) {
			problems = append(problems, fmt.Sprintf("%s: %s", h, achieved[h]))
		}
	}
	for _, o := range r.holes {
		if _, open := achieved[o.harm]; o.sure && !open {
			problems = append(problems, fmt.Sprintf("%s did not happen: if finding %d is mended, delete it from the holes of this row and from docs/security.md", o.harm, o.finding))
		}
	}
	return problems
}

// open reports whether holes that are sure have not shown yet.
func (r *row) open(achieved map[harm]string) bool {
	return slices.ContainsFunc(r.holes, func(o hole) bool { _, found := achieved[o.harm]; return o.sure && !found })
}

func TestJudge(t *testing.T) {
	r := row{may: []harm{ended}, holes: []hole{{injected, 3, true}, {leaked, 1, false}}}
	assert.Empty(t, r.judge(map[harm]string{ended: "x", injected: "y"}))
	assert.Empty(t, r.judge(map[harm]string{leaked: "x", injected: "y"}))
	assert.Equal(t, []string{"died: x"}, r.judge(map[harm]string{died: "x", injected: "y"}))
	assert.Len(t, r.judge(nil), 1, "a hole that has been mended is still listed")
	assert.True(t, r.open(nil))
	assert.False(t, r.open(map[harm]string{injected: "y"}))
}
