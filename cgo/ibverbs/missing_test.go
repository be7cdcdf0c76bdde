//go:build !(linux && cgo && verbs)

package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMissing(t *testing.T) {
	list, err := ibverbs.Driver{}.Devices()
	require.NoError(t, err)
	assert.Empty(t, list)
	d, err := ibverbs.Driver{}.Open("rxe0")
	assert.Nil(t, d)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.ErrorContains(t, err, `"rxe0"`)
}
