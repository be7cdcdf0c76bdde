package bufinv

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &Buf{}, &Inventory{}, &Pool{}, &PoolConfig{})
	require.ErrorIs(t, new(Buf).Err(), ErrInvalid)
	require.ErrorIs(t, new(Pool).Alloc().Err(), ErrInvalid)
	require.NoError(t, List(nil, nil).Err(), "no buffers are an empty list")
}
