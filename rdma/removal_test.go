//go:build linux && cgo && verbs

package rdma_test

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// startCommand runs a command that may take until the test has let go of something.
func startCommand(t *testing.T, words ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	c := make(chan error, 1)
	go func() { c <- cmd.Wait() }()
	return c
}

func waitCommand(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(5 * time.Minute):
		require.Fail(t, "the command did not end")
	}
}

// stream writes without end from a to b, over an engine that sleeps when it can,
// and has remove called in the middle of it, when the cable at b is cut, so that
// what is under way stays so. It returns when both contexts are Idle, with how the
// writes ended.
func stream(t *testing.T, a, b verbs.Device, remove func()) (r *rig, writes *outcome[*rdma.Task]) {
	t.Helper()
	r, writes = newRigOn(t, a, b, rdma.Config{AckTimeout: 4 * time.Second}, rdma.Config{}), &outcome[*rdma.Task]{}
	writes.then = func(task *rdma.Task) {
		if writes.count() == 20 {
			require.Empty(t, writes.errs)
			require.NoError(t, b.(*soft.Device).SetFaults(soft.Faults{Loss: 1}))
			remove()
		}
		if r.a.ctx.State() != pe.Running || task.Submit() != nil {
			require.NoError(t, task.Free())
		}
	}
	pool := must(r.a.ctx.Pool(8, writes.ok, writes.bad))
	r.connect(1)
	r.a.ctx.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle { // nobody notifies the peer
			require.NoError(t, r.b.ctx.Stop())
		}
	})
	for i := range 8 {
		task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, i<<18, 1<<18), r.a.bufs.Target(r.a.peer, i<<18, 1<<18)))
		require.NoError(t, task.Submit())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.Error(t, r.engine.Run(ctx), "the reason")
	require.Equal(t, 8, pool.Available(), "every task came back")
	require.NotEmpty(t, writes.errs)
	require.Equal(t, []string{"Ready", "Failed", "Closed"}, r.a.reported)
	return r, writes
}

// checkConnection sees that a connection between two devices does.
func checkConnection(t *testing.T, a, b verbs.Device) {
	t.Helper()
	r := newRigOn(t, a, b, rdma.Config{}, rdma.Config{})
	var e taskResult
	submit := attempts[0].prepare(r, &e)
	r.connect(1)
	fill(r.a.mem.Bytes()[:4096], 7)
	submit(r.a.peer, 0, 4096)
	r.until("the write has ended", func() bool { return e.count == 1 })
	require.NoError(t, e.err)
	same(t, r.a.mem.Bytes()[:4096], r.b.mem.Bytes()[:4096])
}

func openNearSoft(t *testing.T) verbs.Device {
	t.Helper()
	return closed(t, must(soft.Open(soft.Config{Interface: "v0"})))
}

// The device is deleted in the middle of a transfer. The kernel (6.1) waits with
// that until the program has closed it: the context ends by itself, and says why.
// The program goes on with another device, and with the same one, made again.
func TestDeletedContext(t *testing.T) {
	requireGuest(t)
	var ended <-chan error
	t.Run("transfer", func(t *testing.T) {
		r, writes := stream(t, openAdapter(t), openFarSoft(t), func() { ended = startCommand(t, "rdma", "link", "delete", "rxe0") })
		t.Log(writes.errs[0])
		for _, err := range writes.errs {
			require.ErrorIs(t, err, rdma.ErrFlushed)
		}
		for _, err := range []error{r.a.ctx.Err(), r.a.conns[0].Err()} {
			require.ErrorIs(t, err, rdma.ErrDevice)
			assert.ErrorContains(t, err, "rxe0 reports")
			assert.ErrorContains(t, err, "device fatal error")
		}
		assert.Empty(t, ended, "it is open")
	})
	waitCommand(t, ended)
	_, err := ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	t.Run("on the software device", func(t *testing.T) { checkConnection(t, openNearSoft(t), openFarSoft(t)) })
	command(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "v0")
	t.Run("on rxe made again", func(t *testing.T) { checkConnection(t, openAdapter(t), openFarSoft(t)) })
}

// The interface under the device goes. The writes under way fail before the
// kernel says why, or are flushed after.
func TestUnpluggedContext(t *testing.T) {
	requireGuest(t)
	var ended <-chan error
	t.Run("transfer", func(t *testing.T) {
		r, writes := stream(t, openAdapter(t), openFarSoft(t), func() { ended = startCommand(t, "/bin/ip", "link", "delete", "v0") })
		t.Log(writes.errs[0], r.a.ctx.Err())
		for _, err := range writes.errs {
			_, ok := errors.AsType[*rdma.TaskError](err)
			require.True(t, ok, "%v", err)
		}
		require.Error(t, r.a.ctx.Err())
	})
	waitCommand(t, ended)
	_, err := ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	t.Run("on the software device", func(t *testing.T) {
		checkConnection(t, openSoft(t), openSoft(t))
	})
}
