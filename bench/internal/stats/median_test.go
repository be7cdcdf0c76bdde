package stats

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMedian(t *testing.T) {
	values := []float64{3, 1, 2}
	assert.Equal(t, 2.0, Median(values))
	assert.Equal(t, []float64{3, 1, 2}, values, "they stay as they are")
	assert.Equal(t, 2.5, Median([]float64{4, 1, 2, 3}))
	assert.Equal(t, 7.0, Median([]float64{7}))
}
