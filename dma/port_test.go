package dma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/internal/faultydevice"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// A port without a path MTU is refused: a queue pair cannot be connected with that.
func TestPortWithoutMTU(t *testing.T) {
	dev, err := faultydevice.Open(soft.Config{})
	require.NoError(t, err)
	dev.Set(func(h *faultydevice.Hooks) {
		h.QueryPort = func(p *verbs.PortAttr) error {
			p.ActiveMTU = 0
			return nil
		}
	})
	_, err = dma.New(dev, dma.Config{})
	require.ErrorIs(t, err, dma.ErrDevice)
	require.NoError(t, dev.Close())
}
