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
