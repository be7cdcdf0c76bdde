package rdma_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// A peer on this machine whose process is killed is noticed though nothing is under way, there
// are no keepalives, and no request ever times out.
func TestKilledOnThisMachine(t *testing.T) {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	s := r.side(openSoft(t), rdma.Config{Permissions: noPermissions, Keepalive: rdma.None, AckTimeout: rdma.Forever})
	var sends outcome[*rdma.Task]
	sends.then = func(task *rdma.Task) { require.NoError(t, task.Free()) }
	pool := must(s.ctx.Pool(1, sends.ok, sends.bad))
	victim := r.startIdle(s, "soft")
	r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
	r.until("packets go through shared memory", func() bool { return s.conns[0].Counters().Path == verbs.PathSharedMemory })
	// The answer shows the process at the other end to be the peer's.
	require.NoError(t, must(pool.Send(s.conns[0], nil)).Submit())
	r.until("the message is acknowledged", func() bool { return sends.count() == 1 })
	require.Empty(t, sends.errs)
	victim.Send(syscall.SIGKILL)
	r.until("the context has ended", func() bool { return s.ctx.State() == pe.Idle })
	require.ErrorIs(t, s.ctx.Err(), rdma.ErrRetryExceeded)
	require.ErrorIs(t, s.conns[0].Err(), rdma.ErrRetryExceeded)
	require.ErrorIs(t, s.conns[0].Err(), rdma.ErrPeerDead)
	require.Equal(t, []string{"Ready", "Failed", "Closed"}, s.reported)
}

// A task that fails since the process of the peer is dead says so, and looks for no other reason.
func TestKilledWithTasks(t *testing.T) {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	s := r.side(openSoft(t), rdma.Config{Permissions: noPermissions, Keepalive: rdma.None, AckTimeout: rdma.Forever})
	var sends outcome[*rdma.Task]
	sends.then = func(task *rdma.Task) { require.NoError(t, task.Free()) }
	pool := must(s.ctx.Pool(1, sends.ok, sends.bad))
	victim := r.startIdle(s, "soft")
	r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
	r.until("packets go through shared memory", func() bool { return s.conns[0].Counters().Path == verbs.PathSharedMemory })
	require.NoError(t, must(pool.Send(s.conns[0], nil)).Submit())
	r.until("the message is acknowledged", func() bool { return sends.count() == 1 })
	victim.Send(syscall.SIGSTOP)
	var status syscall.WaitStatus // a signal takes a moment: until then the peer's device answers
	must(syscall.Wait4(victim.PID(), &status, syscall.WUNTRACED, nil))
	require.True(t, status.Stopped())
	require.NoError(t, must(pool.Send(s.conns[0], nil)).Submit())
	victim.Send(syscall.SIGKILL)
	r.until("the context has ended", func() bool { return s.ctx.State() == pe.Idle })
	require.Len(t, sends.errs, 1)
	for _, err := range []error{sends.errs[0], s.conns[0].Err(), s.ctx.Err()} {
		require.ErrorIs(t, err, rdma.ErrRetryExceeded)
		require.ErrorIs(t, err, rdma.ErrPeerDead)
		require.ErrorContains(t, err, "the process of the peer is dead")
		require.NotContains(t, err.Error(), "MTU")
		require.NotContains(t, err.Error(), "check that the peer is alive")
	}
}
