package mmap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &Map{}, &Config{}, &DMABuf{}, new(Permission))
	require.ErrorIs(t, new(Map).Hold(), ErrInvalid)
}
