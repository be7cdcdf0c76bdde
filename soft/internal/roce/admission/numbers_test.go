package admission

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every number comes once before any comes again, and leaves room for the shard's.
func TestNumbersDoNotComeAgain(t *testing.T) {
	t.Parallel()
	n := newNumbers(Random)
	seen := make([]bool, 1<<numberBits)
	some := len(seen)
	if testing.Short() {
		some /= 8
	}
	for range some {
		number := n.Next()
		if number&(1<<NumberLowBits-1) != 0 || number >= 1<<24 || seen[number>>NumberLowBits] {
			t.Fatalf("%#x, seen %v", number, seen[number>>NumberLowBits&(1<<numberBits-1)])
		}
		seen[number>>NumberLowBits] = true
	}
	if some == len(seen) {
		assert.True(t, seen[n.Next()>>NumberLowBits])
	}
}

// A program cannot predict the numbers of others from its own: the differences of successive
// numbers do not repeat, within a device or between devices.
func TestNumbersCannotBeTold(t *testing.T) {
	const pairs = 200
	differences := make(map[uint32]int)
	n := newNumbers(Random)
	last := n.Next()
	for range pairs {
		next := n.Next()
		differences[next-last]++
		last = next
	}
	assert.Greater(t, len(differences), pairs*9/10)
	a, b := newNumbers(Random), newNumbers(Random)
	same := 0
	for range pairs {
		if a.Next() == b.Next() {
			same++
		}
	}
	assert.Less(t, same, pairs/10)
}

// All random numbers of a control come from its configuration, so that a simulation can repeat
// them.
func TestControlsOfOneSeed(t *testing.T) {
	control := func(seed byte) *Control {
		random := rand.New(rand.NewChaCha8([32]byte{seed}))
		return New(Config{Random: random.Uint32})
	}
	a, same, other := control(1), control(1), control(2)
	numbers := func(c *Control) (list []uint32) {
		for range 8 {
			list = append(list, c.Numbers.Next())
		}
		return list
	}
	first := numbers(a)
	assert.Equal(t, first, numbers(same))
	assert.NotEqual(t, first, numbers(other))
	assert.Equal(t, a.Keys.hosts.secret, same.Keys.hosts.secret)
	assert.Equal(t, a.MADs.sources.secret, same.MADs.sources.secret)
	assert.NotEqual(t, a.Keys.hosts.secret, a.MADs.sources.secret)
}
