package soft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/internal/zerotest"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &soft.Driver{}, &soft.Config{}, &soft.Faults{}, &soft.Device{})
}

// What takes a device refuses one that was not opened.
func TestZeroDevice(t *testing.T) {
	var d soft.Device
	require.ErrorContains(t, d.Close(), "it was not made by Open")
	_, err := d.CreateCQ(verbs.CQInit{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = mmap.Alloc(&d, 1, mmap.LocalReadWrite)
	require.ErrorIs(t, err, mmap.ErrInvalid)
	_, err = mmap.Register(&d, make([]byte, 1), mmap.LocalReadWrite)
	require.ErrorIs(t, err, mmap.ErrInvalid)
	_, err = rdma.New(&d, rdma.Config{})
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = dma.New(&d, dma.Config{})
	require.ErrorIs(t, err, dma.ErrInvalid)
}
