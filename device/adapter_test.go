//go:build linux && !verbs

package device_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

// Without the build tag, the name of an adapter says what to do.
func TestOpenAdapterWithoutTag(t *testing.T) {
	_, err := device.Open("mlx5_0")
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "-tags verbs")
	assert.ErrorContains(t, err, "libibverbs-dev")

	_, err = device.Open("soft-nothing0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.NotErrorIs(t, err, verbs.ErrNotSupported)
}
