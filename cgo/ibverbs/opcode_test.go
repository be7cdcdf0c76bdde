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
	assert.Len(t, sendOpcodes, count)
}
