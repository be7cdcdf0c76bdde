package simulation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each table at a tiny size: the simulations check what arrives, and that nothing is stuck.
func TestTables(t *testing.T) {
	for _, m := range measurements {
		t.Run(m.name, func(t *testing.T) {
			o, err := parse(nil)
			require.NoError(t, err)
			o.operations, o.idleHosts, o.idle = 50, 10, time.Minute
			o.senders, o.warmUp, o.time = []int{4}, time.Millisecond, time.Millisecond
			text, err := m.run(o)
			require.NoError(t, err)
			assert.NotContains(t, text, "never")
			assert.Greater(t, strings.Count(text, "\n"), 2)
		})
	}
}

func TestShares(t *testing.T) {
	share, fairness, starved := shares([]int{125, 125, 0, 0}, time.Microsecond, 4)
	assert.InDelta(t, 0.5, share, 1e-9)
	assert.InDelta(t, 0.5, fairness, 1e-9)
	assert.Equal(t, 2, starved)
}

func TestTail(t *testing.T) {
	var list []time.Duration
	for i := range 1000 {
		list = append(list, time.Duration(1000-i)*time.Microsecond)
	}
	assert.Equal(t, "501µs, 991µs, 1ms", tail(list))
	assert.Equal(t, "–", tail(nil))
}
