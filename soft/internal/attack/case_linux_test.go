package attack

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// harm is damage that an attack can do to its victims. Slowing them down does not count.
type harm string

const (
	injected  harm = "injected"  // data is wrong, or did not come from the peer
	ended     harm = "ended"     // a connection between victims has ended, or makes no progress
	leaked    harm = "leaked"    // memory was read without its key
	guessed   harm = "guessed"   // keys can be tried without limit
	amplified harm = "amplified" // far more was sent to a silent peer than it had asked for
	refused   harm = "refused"   // new peers are not served, even after the attack
	accepted  harm = "accepted"  // an invalid request or descriptor was accepted
	died      harm = "died"      // the process of a victim has ended

	hung         harm = "hung"         // a call of a victim does not return
	filled       harm = "filled"       // a victim has allocated memory for data that was not sent
	impersonated harm = "impersonated" // a process took the place of a peer
)

// attackCase is an attack.
type attackCase struct {
	name        string
	description string
	scenario
	from     sendMethod
	forges   []forgery // kinds of packets to forge in turn, instead of run
	run      func(a *attacker) error
	once     bool     // run ends by itself
	allowed  []harm   // harms that it may do
	required []harm   // harms that it must do, which shows that the other cases are effective
	counters []string // counters of the victims, of which at least one must grow
}

// excess returns the harms that an attack has done and may not do.
func (r *attackCase) excess(achieved map[harm]string) (list []string) {
	for _, h := range slices.Sorted(maps.Keys(achieved)) {
		if !slices.Contains(r.allowed, h) {
			list = append(list, fmt.Sprintf("%s: %s", h, achieved[h]))
		}
	}
	return list
}

func TestExcess(t *testing.T) {
	r := attackCase{allowed: []harm{ended}}
	assert.Empty(t, r.excess(nil))
	assert.Empty(t, r.excess(map[harm]string{ended: "x"}))
	assert.Equal(t, []string{"died: x", "injected: y"}, r.excess(map[harm]string{ended: "z", died: "x", injected: "y"}))
}
