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

	hung         harm = "hung"         // a call of a victim's does not return
	filled       harm = "filled"       // a victim has used memory for what nobody has sent
	impersonated harm = "impersonated" // a process took the place of a peer
)

// row is an attack.
type row struct {
	name string
	does string
	scene
	from    vantage
	forges  []forgery // in turn, instead of run
	run     func(a *attacker) error
	once    bool     // run ends by itself
	may     []harm   // what it may achieve
	must    []harm   // what it does achieve, which shows that other rows do what they say
	counted []string // counters of the victims; at least one counts what was refused
}

// excess is what an attack has achieved that it may not.
func (r *row) excess(achieved map[harm]string) (list []string) {
	for _, h := range slices.Sorted(maps.Keys(achieved)) {
		if !slices.Contains(r.may, h) {
			list = append(list, fmt.Sprintf("%s: %s", h, achieved[h]))
		}
	}
	return list
}

func TestExcess(t *testing.T) {
	r := row{may: []harm{ended}}
	assert.Empty(t, r.excess(nil))
	assert.Empty(t, r.excess(map[harm]string{ended: "x"}))
	assert.Equal(t, []string{"died: x", "injected: y"}, r.excess(map[harm]string{ended: "z", died: "x", injected: "y"}))
}
