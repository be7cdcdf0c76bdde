package verbs

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryConstantHasAName(t *testing.T) {
	assert.Len(t, opcodeNames, opcodeCount)
	assert.Len(t, wcOpcodeNames, wcOpcodeCount)
	assert.Len(t, statusNames, statusCount)
}
