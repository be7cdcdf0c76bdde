package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/internal/zerotest"
)

func TestZeroValues(t *testing.T) {
	zerotest.Check(t, &graph.Builder[int]{}, &graph.Graph[int]{}, &graph.Pool[int]{}, &graph.Instance[int]{}, &graph.Node{},
		&graph.CycleError{}, &graph.NodeError{}, &graph.RunError{})
	_, err := new(graph.Pool[int]).Alloc(1)
	require.ErrorIs(t, err, graph.ErrInvalid)
	_, err = new(graph.Builder[int]).Build()
	require.Error(t, err)
}
