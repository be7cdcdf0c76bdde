package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A context in Stopping that waits for a task to be freed lets its engine sleep.
func TestStoppingSleeps(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	r.connect(1)
	kept := must(pool.Send(r.a.conns[0], nil))
	require.NoError(t, r.a.ctx.Stop())
	require.NoError(t, r.b.ctx.Stop())
	r.until("all but the task is gone", func() bool {
		n, err := r.engine.Progress()
		require.NoError(t, err)
		return n == 0 && r.b.ctx.State() == pe.Idle && r.a.conns[0].State() == rdma.Closed && !r.ready()
	})
	require.Equal(t, pe.Stopping, r.a.ctx.State())
	require.NoError(t, kept.Free())
	assert.Equal(t, pe.Idle, r.a.ctx.State())
	assert.True(t, r.ready(), "a change of state to be reported")
}

// ready arms the engine's notification, and reports whether it came at once.
func (r *rig) ready() bool {
	fd, err := r.engine.NotificationFD()
	require.NoError(r.t, err)
	require.NoError(r.t, r.engine.Arm())
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	require.NoError(r.t, err)
	require.NoError(r.t, r.engine.Clear())
	return n > 0
}
