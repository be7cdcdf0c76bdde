package verbs

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTransports(t *testing.T) {
	s := TransportSet(RC, UD, -1, 200)
	assert.True(t, s.Has(RC))
	assert.False(t, s.Has(UC))
	assert.True(t, s.Has(UD))
	assert.False(t, s.Has(-1))
	assert.False(t, s.Has(200))
	assert.Equal(t, s, TransportSet(RC, UD))
}
