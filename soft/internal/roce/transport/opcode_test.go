package transport

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

// An operation that is missing in the table would panic when its request completes.
func TestEveryOperationHasACompletion(t *testing.T) {
	count := 0
	for !strings.HasPrefix(verbs.Opcode(count).String(), "operation ") { // so String names unknown ones
		count++
	}
	assert.Len(t, CompletionOpcodes, count)
}
