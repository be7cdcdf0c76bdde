package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// A context and memory in a protection domain of their own.
func TestOwnProtectionDomain(t *testing.T) {
	dev := must(soft.Open(soft.Config{}))
	pd := must(dev.AllocPD())
	r := newRig(t, rdma.Config{}, rdma.Config{})
	ctx := must(rdma.New(dev, rdma.Config{PD: pd}))
	mem := must(mmap.New(dev, mmap.Config{Size: 4096, Permissions: mmap.LocalReadWrite, PD: pd}))
	require.ErrorIs(t, mem.AddPD(pd), mmap.ErrExists)
	require.NoError(t, mem.AddDevice(dev))
	assert.Equal(t, []verbs.Device{dev}, mem.Friends(friend.Package{}).Devices())
	bufs := r.a.bufs

	var writes outcome[*rdma.Task]
	pool := must(ctx.Pool(1, writes.ok, writes.bad))
	require.NoError(t, r.engine.Connect(ctx))
	require.NoError(t, ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	conn, desc, err := ctx.Export()
	require.NoError(t, err)
	peer, peerDesc, err := r.b.ctx.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(peerDesc))
	require.NoError(t, peer.Connect(desc))
	r.until("it is ready", func() bool { return conn.State() == rdma.Ready })
	remote := r.imported(r.b, &side{dev: dev})
	copy(mem.Bytes(), "domain")
	task := must(pool.Write(conn, bufs.Source(mem, 0, 6), bufs.Target(remote, 0, 6)))
	require.NoError(t, task.Submit())
	r.until("the write is done", func() bool { return writes.count() == 1 })
	assert.Empty(t, writes.errs)
	assert.Equal(t, "domain", string(r.b.mem.Bytes()[:6]))

	require.NoError(t, task.Free())
	require.NoError(t, ctx.Stop())
	r.until("it is Idle", func() bool { return ctx.State() == pe.Idle })
	require.NoError(t, ctx.Close())
	require.NoError(t, remote.Close())
	require.NoError(t, mem.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}
