package rules

import (
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestEveryOperationIsKnown(t *testing.T) {
	count := 0
	for !strings.HasPrefix(verbs.Opcode(count).String(), "operation ") { // so String names unknown ones
		count++
	}
	assert.Equal(t, count, bits.Len32(uint32(known)))
	assert.Equal(t, count, bits.OnesCount32(uint32(known)))
}
