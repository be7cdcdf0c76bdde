package rdma_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// A request that the peer's context does not permit gets the advice that belongs to it,
// at both ends, and so do the tasks behind it.
func TestPermissionMissing(t *testing.T) {
	for _, c := range []struct {
		name   string
		submit func(r *rig, p *rdma.Pool) (*rdma.Task, error)
		advice string
	}{
		{"read", func(r *rig, p *rdma.Pool) (*rdma.Task, error) {
			return p.Read(r.a.conns[0], r.a.bufs.Source(r.a.peer, 0, 8), r.a.bufs.Target(r.a.mem, 0, 8))
		}, "mmap.RemoteRead in its Config.Permissions"},
		{"compare-and-swap", func(r *rig, p *rdma.Pool) (*rdma.Task, error) {
			return p.CompareSwap(r.a.conns[0], r.a.bufs.Target(r.a.peer, 0, 8), 1, 2)
		}, "mmap.RemoteAtomic in its Config.Permissions"},
		{"fetch-and-add", func(r *rig, p *rdma.Pool) (*rdma.Task, error) {
			return p.FetchAdd(r.a.conns[0], r.a.bufs.Target(r.a.peer, 0, 8), 1)
		}, "mmap.RemoteAtomic in its Config.Permissions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := pe.New(pe.Config{})
			r := &rig{t: t, engine: engine}
			t.Cleanup(func() { require.NoError(t, engine.Close()) })
			r.a, r.b = r.sideThatStays(openSoft(t), rdma.Config{}), r.sideThatStays(openSoft(t), rdma.Config{Permissions: mmap.RemoteWrite})
			r.a.peer = r.imported(r.b, r.a)
			r.connect(1)
			pool := anyPool(r.a.ctx)
			var errs []error
			for range 3 {
				task := must(c.submit(r, pool))
				require.NoError(t, pe.SubmitOrFree(task, nil, func(task *rdma.Task, err error) {
					errs = append(errs, err)
					assert.NoError(t, task.Free())
				}))
			}
			r.until("both ends have noticed", func() bool { return len(errs) == 3 && r.b.conns[0].State() == rdma.Failed })
			for i, err := range errs {
				require.ErrorIs(t, err, rdma.ErrRemoteInvalid)
				require.ErrorContains(t, err, c.advice)
				require.NotContains(t, err.Error(), "receive")
				namesOnce(t, err, r.a.conns[0])
				var failure *rdma.TaskError
				require.ErrorAs(t, err, &failure)
				require.Equal(t, i > 0, errors.Is(err, rdma.ErrFlushed))
				if i > 0 {
					require.Equal(t, r.a.conns[0].Err(), failure.Cause)
				}
			}
			require.ErrorIs(t, r.b.conns[0].Err(), rdma.ErrPeerRefused)
			require.ErrorContains(t, r.b.conns[0].Err(), "Config.Permissions")
			// Later ones learn it too.
			late := must(pool.Send(r.a.conns[0], nil))
			err := late.Submit()
			require.ErrorIs(t, err, rdma.ErrNotReady)
			require.ErrorIs(t, err, rdma.ErrRemoteInvalid)
			namesOnce(t, err, r.a.conns[0])
			require.ErrorAs(t, err, new(*rdma.TaskError))
			require.NoError(t, late.Free())
		})
	}
}

// namesOnce checks that an error names a connection, and does not repeat itself.
func namesOnce(t *testing.T, err error, conn *rdma.Connection) {
	t.Helper()
	assert.Equal(t, 1, strings.Count(err.Error(), conn.String()), "%v", err)
}

// Tasks that the end of a connection or of a context cuts off, and calls after it, say
// why it ended.
func TestFlushedTasksSayWhy(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		end  func(r *rig)
		want error // nil: this program wanted it
	}{
		{"the peer closes", func(r *rig) { require.NoError(r.t, r.b.conns[0].Close()) }, rdma.ErrPeerClosed},
		{"the peer stops", func(r *rig) { require.NoError(r.t, r.b.ctx.Stop()) }, rdma.ErrPeerClosed},
		{"Fail", func(r *rig) { r.a.ctx.Fail(boom) }, boom},
		{"Close", func(r *rig) { require.NoError(r.t, r.a.conns[0].Close()) }, nil},
		{"Stop", func(r *rig) { require.NoError(r.t, r.a.ctx.Stop()) }, nil},
	} {
		runSimulated(t, c.name, 3, func(t *testing.T, s *sim.Sim) {
			r := newSimRig(s, rdma.Config{}, rdma.Config{})
			var sends outcome[*rdma.Task]
			var recvs outcome[*rdma.ReceiveTask]
			pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
			recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
			r.connect(1)
			task, recv := must(pool.Send(r.a.conns[0], nil)), must(recvPool.Alloc(nil))
			require.NoError(t, task.Submit()) // meets no receive
			require.NoError(t, recv.Submit())
			c.end(r)
			r.until("both came back", func() bool { return sends.count() == 1 && recvs.count() == 1 })
			require.Len(t, sends.errs, 1)
			var failure *rdma.TaskError
			require.ErrorAs(t, sends.errs[0], &failure)
			require.ErrorIs(t, sends.errs[0], rdma.ErrFlushed)
			if c.want == nil {
				require.NoError(t, failure.Cause)
				require.ErrorContains(t, failure, "this program closed the connection or stopped the context")
			} else {
				require.ErrorIs(t, failure, c.want)
				require.ErrorContains(t, failure, c.want.Error())
				namesOnce(t, failure, r.a.conns[0])
			}
			if errors.Is(c.want, boom) {
				require.ErrorIs(t, recvs.errs[0], boom, "a receive has the reason of the context")
				err := task.Submit()
				require.ErrorIs(t, err, pe.ErrBadState)
				require.ErrorIs(t, err, boom)
				require.ErrorContains(t, err, `context "a" is Stopping`)
			}
			require.NoError(t, task.Free())
			require.NoError(t, recv.Free())
		})
	}
}
