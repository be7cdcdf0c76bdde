package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A copy of a task is refused, and the task is not harmed.
func TestCopyOfATask(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	r.connect(1)
	task := must(pool.Write(r.a.conns[0], nil, nil))
	dup := *task
	for _, err := range []error{dup.Submit(), dup.Free(), dup.SetSource(nil)} {
		require.ErrorIs(t, err, pe.ErrFreed)
	}
	require.Zero(t, pool.Available())
	require.NoError(t, task.Submit())
	r.until("it is done", func() bool { return writes.count() == 1 })
	require.NoError(t, task.Free())
	require.ErrorIs(t, dup.Free(), pe.ErrFreed)
	require.Equal(t, 1, pool.Available())
}
