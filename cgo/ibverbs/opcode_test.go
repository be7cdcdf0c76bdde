//go:build linux && cgo && verbs

package ibverbs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestEveryOperationIsTranslated(t *testing.T) {
	count := 0
	for !strings.HasPrefix(verbs.Opcode(count).String(), "operation ") { // so String names unknown ones
		count++
	}
	for op := range verbs.Opcode(count) {
		translated := int(op) < len(sendOpcodes) && (sendOpcodes[op] != 0 || op == verbs.OpWrite) // IBV_WR_RDMA_WRITE is zero
		assert.Equal(t, op != verbs.OpAtomicWrite, translated, "%v", op)
	}
}
