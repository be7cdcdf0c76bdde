package dma

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Another file could shrink under the device. Real dma-bufs are among the tests in
// the guest of cgo/ibverbs.
func TestOnlyDMABufs(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(4096))
	_, _, err = MapDMABuf(int(file.Fd()), 0, 4096, true)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "not a dma-buf")
	_, _, err = MapDMABuf(-1, 0, 4096, true)
	require.ErrorIs(t, err, verbs.ErrInvalid)
}
