package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
)

func TestConnectTwoContexts(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 1}, rdma.Config{MaxConnections: 3})
	_, _, err := rdmatest.Connect(r.a.ctx, r.b.ctx)
	require.ErrorIs(t, err, pe.ErrBadState)
	require.NoError(t, r.b.ctx.Start())
	_, _, err = rdmatest.Connect(r.b.ctx, r.a.ctx)
	require.ErrorIs(t, err, pe.ErrBadState, "one of them is Idle")
	require.Empty(t, r.b.ctx.List())
	require.NoError(t, r.a.ctx.Start())
	atA, atB, err := rdmatest.Connect(r.a.ctx, r.b.ctx)
	require.NoError(t, err)
	require.Same(t, r.a.ctx, atA.Context())
	require.Same(t, r.b.ctx, atB.Context())
	r.until("both run", func() bool { return r.a.ctx.State() == pe.Running && r.b.ctx.State() == pe.Running })
	assert.Equal(t, atA.QPN(), atB.PeerQPN())

	// No room at one end: the other has it back.
	for i := range 5 {
		_, _, err = rdmatest.Connect(r.b.ctx, r.a.ctx)
		require.ErrorIs(t, err, rdma.ErrFull)
		r.until("b has its place back", func() bool { return r.b.closed() == i+2 })
	}

	// A context with itself has two connections.
	one, two, err := rdmatest.Connect(r.b.ctx, r.b.ctx)
	require.NoError(t, err)
	require.NotSame(t, one, two)
	r.until("both are ready", func() bool { return one.State() == rdma.Ready && two.State() == rdma.Ready })
	assert.Equal(t, one.QPN(), two.PeerQPN())
}
