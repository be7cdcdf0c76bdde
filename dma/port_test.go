package dma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
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

// The queue pair is in the partition that the program names.
func TestPKeyIndex(t *testing.T) {
	dev := must(faultydevice.Open(soft.Config{}))
	defer func() { require.NoError(t, dev.Close()) }()
	var index []int
	dev.Set(func(h *faultydevice.Hooks) {
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if attr.State == verbs.QPInitialized {
				index = append(index, attr.PKeyIndex)
				attr.PKeyIndex = 0
			}
			return qp.Modify(attr, mask)
		}
	})
	engine := pe.New(pe.Config{})
	defer func() { require.NoError(t, engine.Close()) }()
	ctx := must(dma.New(dev, dma.Config{Engine: engine, PKeyIndex: 3}))
	require.NoError(t, ctx.Start())
	assert.Equal(t, []int{3}, index)
	require.NoError(t, ctx.Close())
}
