package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestTransports(t *testing.T) {
	s := verbs.TransportSet(verbs.RC, verbs.UD, -1, 200)
	assert.True(t, s.Has(verbs.RC))
	assert.False(t, s.Has(verbs.UC))
	assert.True(t, s.Has(verbs.UD))
	assert.False(t, s.Has(-1))
	assert.False(t, s.Has(200))
	assert.Equal(t, s, verbs.TransportSet(verbs.RC, verbs.UD))
}

// Sets print the names of what they hold, and what has none as a number.
func TestSetsPrint(t *testing.T) {
	assert.Equal(t, "none", verbs.Transports(0).String())
	assert.Equal(t, "RC, UD", verbs.TransportSet(verbs.UD, verbs.RC).String())
	assert.Equal(t, "SRD, 0x100", (verbs.TransportSet(verbs.SRD) | 0x100).String())
	assert.Equal(t, "0x80000000", verbs.TransportSet(31).String())
	assert.Equal(t, "none", verbs.WCFields(0).String())
	assert.Equal(t, "timestamp, wall clock, source", (verbs.WCTimestamp | verbs.WCWallClock | verbs.WCSource).String())
	assert.Equal(t, "wall clock, 0x30", (verbs.WCWallClock | 0x30).String())
}
