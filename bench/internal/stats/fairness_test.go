package stats

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFairness(t *testing.T) {
	jain, least := Fairness([]float64{100, 100, 100, 100})
	assert.InDelta(t, 1, jain, 1e-9)
	assert.InDelta(t, 1, least, 1e-9)
	jain, least = Fairness([]float64{100, 0, 0, 0})
	assert.InDelta(t, 0.25, jain, 1e-9)
	assert.Zero(t, least)
	jain, least = Fairness([]float64{0, 0})
	assert.Zero(t, jain)
	assert.Zero(t, least)
}
