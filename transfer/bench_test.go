package transfer

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// BenchmarkWrites compares batches with a loop over package rdma that keeps as many writes at the device.
func BenchmarkWrites(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprintf("batch/%d", size), func(b *testing.B) { benchBatch(b, size) })
		b.Run(fmt.Sprintf("loop/%d", size), func(b *testing.B) { benchLoop(b, size) })
	}
}

const benchMemory = 4 << 20

func benchBatch(b *testing.B, size int) {
	near, far := open(b, 1), open(b, 1)
	register(b, far, "blocks", benchMemory)
	mine := register(b, near, "", benchMemory)
	remote := dial(b, near, far, "blocks")
	b.SetBytes(int64(size))
	b.ResetTimer()
	for left := b.N; left > 0; {
		n := min(left, 10_000)
		left -= n
		var batch Batch
		batch.Grow(n)
		for i := range n {
			at := i * size % benchMemory
			batch.Write(remote, at, mine.Bytes()[at:][:size])
		}
		h, err := near.Submit(&batch)
		require.NoError(b, err)
		require.NoError(b, h.Wait(context.Background()))
	}
}

// benchLoop writes with the engine and the connection of an agent, by hand.
func benchLoop(b *testing.B, size int) {
	near, far := open(b, 1), open(b, 1)
	register(b, far, "blocks", benchMemory)
	mine := register(b, near, "", benchMemory)
	remote := dial(b, near, far, "blocks")
	l := remote.peer.paths[0]
	m, err := mmap.FromKey(l.dev.device, remote.keys[0].Addr, remote.size, remote.keys[0].Key, remote.perm)
	require.NoError(b, err)
	defer func() { require.NoError(b, m.Close()) }()
	b.SetBytes(int64(size))
	b.ResetTimer()
	done := make(chan error, 1)
	require.NoError(b, l.dev.engine.Do(func() {
		begun, ended := 0, 0
		var pool *rdma.Pool
		next := func(submit func(t *rdma.Task) error) {
			if begun == b.N {
				return
			}
			at := begun * size % benchMemory
			begun++
			t, err := pool.Write(l.conn, bufinv.Source(mine.maps[0], at, size), bufinv.Target(m, at, size))
			if err == nil {
				err = submit(t)
			}
			if err != nil {
				done <- err
			}
		}
		submit := func(t *rdma.Task) error { return t.Submit(pe.Aggregate) }
		pool, err = l.dev.rdma.Pool(64, func(t *rdma.Task) {
			_ = t.Free()
			if ended++; ended == b.N {
				done <- nil
			}
			next(submit)
		}, func(t *rdma.Task, err error) { _ = t.Free(); done <- err })
		if err != nil {
			done <- err
		}
		for range min(64, b.N) {
			next(submit)
		}
	}))
	require.NoError(b, <-done)
}
