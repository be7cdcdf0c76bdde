package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// States that no seed has reached make a Check of enough seeds fail.
func TestCoverage(t *testing.T) {
	for _, seeds := range []uint64{coverageSeeds - 1, coverageSeeds} {
		var c coverage
		for seed := range seeds {
			require.NoError(t, Simulate(seed, func(s *Sim) {
				s.Sometimes(false, "never")
				s.Sometimes(seed == 7, "in one seed")
				s.Reached("always")
				s.Reached("always")
				s.Cleanup(func() { c.add(s) })
			}))
		}
		assert.Equal(t, map[string]reached{
			"never": {}, "in one seed": {1, 1}, "always": {2 * int(seeds), int(seeds)},
		}, c.states)
		o := &outcome{TB: t}
		c.report(o, true)
		if seeds < coverageSeeds {
			assert.NoError(t, o.err())
		} else {
			assert.EqualError(t, o.err(), fmt.Sprintf("sim: never in %d seeds: never", seeds))
		}
	}
}

// Check collects the states of its seeds, and fails if one was not reached.
func TestCheckCovers(t *testing.T) {
	Check(t, coverageSeeds, func(s *Sim) {
		s.Sometimes(s.Seed() == coverageSeeds/2, "one seed")
	})
}

// A run that ends in a condition counts, too.
func TestCheckCoversSkipped(t *testing.T) {
	Check(t, 3, func(s *Sim) {
		s.RunUntil(func() bool {
			s.Skip("this seed is of no use")
			return false
		}, time.Minute)
	})
}
