package dma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &dma.Context{}, &dma.Config{}, &dma.CopyPool{}, &dma.CopyTask{}, &dma.TaskError{})
	_, err := new(dma.CopyPool).Alloc(nil, nil)
	require.ErrorIs(t, err, dma.ErrInvalid)
	require.ErrorContains(t, new(dma.CopyTask).Submit(), "submit a copy")
}
