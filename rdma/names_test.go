package rdma_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Values that have no name, as a peer may send them, are named by their numbers.
func TestNamesOfUnknownValues(t *testing.T) {
	for _, n := range []int{math.MinInt, -1, 1000, math.MaxInt} {
		require.NotEmpty(t, rdma.Operation(n).String())
		require.NotEmpty(t, rdma.ConnectionState(n).String())
		require.NotEmpty(t, rdma.ReceiveOpcode(n).String())
	}
}

// Tasks that are missing are refused: the program did not check the error of an allocation.
func TestMissingTasks(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	pool := must(r.a.ctx.Pool(2, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	r.connect(1)
	_, err := pool.Write(nil, nil, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	task := must(pool.Write(r.a.conns[0], nil, nil))
	n, err := rdma.SubmitAll([]*rdma.Task{task, nil}, 0)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	r.until("it is done", func() bool { return !task.InFlight() })
	for _, list := range [][]*rdma.Task{{nil, task}} {
		n, err = rdma.SubmitAll(list, 0)
		require.Zero(t, n)
		require.ErrorIs(t, err, rdma.ErrInvalid)
	}
	require.ErrorIs(t, rdma.FreeAll([]*rdma.Task{nil, task}), rdma.ErrInvalid)
	require.Equal(t, 2, pool.Available(), "it went on after a failure")
	require.ErrorIs(t, rdma.FreeAll([]*rdma.Task{nil}), rdma.ErrInvalid)
	require.ErrorIs(t, pe.SubmitOrFree(nil, nil, func(*rdma.Task, error) {}), pe.ErrInvalid)
}
