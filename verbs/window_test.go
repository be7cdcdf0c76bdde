package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMWTypes(t *testing.T) {
	s := verbs.MWTypeSet(verbs.MWType2, -1, 200)
	assert.False(t, s.Has(verbs.MWType1))
	assert.True(t, s.Has(verbs.MWType2))
	assert.False(t, s.Has(-1))
	assert.Equal(t, uint32(0x12345600), verbs.NextRKey(0x123456ff))
	assert.Equal(t, uint32(0x12345601), verbs.NextRKey(0x12345600))
}
