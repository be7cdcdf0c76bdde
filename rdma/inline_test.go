package rdma_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// watchedPD makes queue pairs that note what is posted.
type watchedPD struct {
	verbs.PD
	posted []verbs.SendWR
	shared []byte // what a dma-buf whose offset is its address stands for
}

func (p *watchedPD) RegDMABufMR(_ verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	return p.PD.RegMR(p.shared, access)
}

type watchedQP struct {
	verbs.QP
	pd *watchedPD
}

func (p *watchedPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(init)
	return &watchedQP{qp, p}, err
}

func (q *watchedQP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.pd.posted = append(q.pd.posted, wrs...)
	return q.QP.PostSend(wrs)
}

// Short data that goes to the peer is posted inline. Long data is not. Data that the peer
// returns, and data in memory that the processor cannot read, cannot be.
func TestInline(t *testing.T) {
	for buffers, most := range map[int]int{0: 64, 2: 64, 7: 112} {
		testInline(t, buffers, most)
	}
}

// testInline tests a setting of Config.MaxSGE, with which so many bytes are posted inline.
func testInline(t *testing.T, buffers, most int) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	pd := &watchedPD{PD: dev.DefaultPD()}
	mem, err := mmap.New(dev, mmap.Config{Size: 4096, Permissions: everything, PD: pd})
	require.NoError(t, err)
	defer func() { require.NoError(t, mem.Close()) }()
	desc, err := mem.ExportPD(pd)
	require.NoError(t, err)
	peer, err := mmap.Import(dev, desc)
	require.NoError(t, err)
	defer func() { require.NoError(t, peer.Close()) }()
	bufs, err := bufinv.New(4)
	require.NoError(t, err)
	defer func() { require.NoError(t, bufs.Close()) }()
	engine := pe.New(pe.Config{})
	defer func() { require.NoError(t, engine.Close()) }()
	ctx, err := rdma.New(dev, rdma.Config{PD: pd, Permissions: everything, MaxSGE: buffers})
	require.NoError(t, err)
	defer func() { require.NoError(t, ctx.Close()) }()
	require.NoError(t, engine.Connect(ctx))

	var writes outcome[*rdma.Task]
	var reads outcome[*rdma.Task]
	writePool := must(ctx.Pool(1, writes.ok, writes.bad))
	readPool := must(ctx.Pool(1, reads.ok, reads.bad))
	addPool := must(ctx.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	require.NoError(t, ctx.Start())
	conn, own, err := ctx.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(own))
	until := func(done func() bool) {
		for deadline := time.Now().Add(5 * time.Minute); !done(); {
			_, err := engine.Progress()
			require.NoError(t, err)
			require.True(t, time.Now().Before(deadline), "it never happened")
		}
	}
	until(func() bool { return ctx.State() == pe.Running })

	fill(mem.Bytes()[:2048], 3)
	require.Equal(t, most, ctx.MaxInline())
	for _, n := range []int{1, 8, 64, 65, 112, 113, 1000} {
		inline := n <= most
		writes, reads, pd.posted = outcome[*rdma.Task]{}, outcome[*rdma.Task]{}, nil
		clear(mem.Bytes()[2048:])
		write := must(writePool.Write(conn, bufinv.List(bufs.Source(mem, 0, n)), bufs.Target(peer, 2048, n)))
		read := must(readPool.Read(conn, bufs.Source(peer, 0, n), bufs.Target(mem, 3072, n)))
		require.NoError(t, write.Submit())
		require.NoError(t, read.Submit())
		until(func() bool { return writes.count()+reads.count() == 2 })
		require.Empty(t, append(writes.errs, reads.errs...))
		same(t, mem.Bytes()[:n], mem.Bytes()[2048:2048+n])
		require.Len(t, pd.posted, 2)
		assert.Equal(t, inline, pd.posted[0].Flags&verbs.FlagInline != 0, "a write of %d bytes", n)
		assert.Zero(t, pd.posted[1].Flags&verbs.FlagInline, "a read of %d bytes", n)
		require.NoError(t, write.Free())
		require.NoError(t, read.Free())
	}
	if runtime.GOOS == "linux" {
		pd.shared, pd.posted, writes = mem.Bytes(), nil, outcome[*rdma.Task]{}
		file, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		defer file.Close()
		hidden, err := mmap.New(dev, mmap.Config{DMABuf: &mmap.DMABuf{FD: int(file.Fd()), Offset: mem.Addr(), Length: 4096}, PD: pd})
		require.NoError(t, err)
		defer func() { require.NoError(t, hidden.Close()) }()
		clear(mem.Bytes()[2048:])
		source := bufinv.List(bufs.Source(mem, 0, 8), bufs.Source(hidden, 8, 8))
		write := must(writePool.Write(conn, source, bufs.Target(peer, 2048, 16)))
		require.NoError(t, write.Submit())
		until(func() bool { return writes.count() == 1 })
		require.Empty(t, writes.errs)
		same(t, mem.Bytes()[:16], mem.Bytes()[2048:2064])
		assert.Zero(t, pd.posted[0].Flags&verbs.FlagInline, "a write from a dma-buf")
		require.NoError(t, write.Free())
		// The result of an atomic could not be put there, once it is done.
		add := must(addPool.FetchAdd(conn, bufs.Target(peer, 0, 8), 1))
		require.NoError(t, add.SetResult(bufs.Target(hidden, 0, 8)))
		require.ErrorIs(t, add.Submit(), rdma.ErrInvalid)
		require.NoError(t, add.Free())
	}
	require.NoError(t, ctx.Stop())
	until(func() bool { return ctx.State() == pe.Idle })
}
