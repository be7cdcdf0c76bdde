//go:build !(linux && cgo && verbs)

package rdmacm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

type named struct{ verbs.Device }

func (named) Name() string { return "rxe0" }

func TestMissing(t *testing.T) {
	_, err := Open(named{}, func(verbs.CMEvent) {})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "rxe0")
	assert.ErrorContains(t, err, "librdmacm-dev")
}
