package transfer_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	benchMemory = 4 << 20
	benchDepth  = 64 // of both, which is the default of Config.Depth
)

// BenchmarkWrites compares batches with a loop over package rdma that keeps as many writes at the
// device, by shared memory and by UDP. They take turns, so that what else the machine does slows down both.
func BenchmarkWrites(b *testing.B) {
	for _, c := range []struct {
		device     string
		size, turn int
	}{{"soft-lo", 64, 10_000}, {"soft-lo", 64 << 10, 1000}, {"soft-lo?local=off", 64, 10_000}, {"soft-lo?local=off", 64 << 10, 1000}} {
		b.Run(fmt.Sprintf("%s/%d", c.device, c.size), func(b *testing.B) {
			batches, loop := newBatches(b, c.device, c.size), newLoop(b, c.device, c.size)
			batches(c.turn)
			loop(c.turn)
			var spent [2]time.Duration
			b.ResetTimer()
			for done := 0; done < b.N; done += c.turn {
				n := min(c.turn, b.N-done)
				for i, write := range []func(n int){batches, loop} {
					began := time.Now()
					write(n)
					spent[i] += time.Since(began)
				}
			}
			b.ReportMetric(0, "ns/op") // that of both together
			b.ReportMetric(float64(spent[0])/float64(b.N), "batch-ns/op")
			b.ReportMetric(float64(spent[1])/float64(b.N), "loop-ns/op")
			b.ReportMetric(float64(spent[1])/float64(spent[0]), "rate-to-loop")
		})
	}
}

func openDevice(b *testing.B, name string) verbs.Device {
	dev, err := device.Open(name)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, dev.Close()) })
	return dev
}

// newBatches returns a function that makes n writes in one batch.
func newBatches(b *testing.B, dev string, size int) func(n int) {
	ctx := context.Background()
	agent := func(listen string) *transfer.Agent {
		a, err := transfer.Open(transfer.Config{Devices: []verbs.Device{openDevice(b, dev)}, Listen: listen, Depth: benchDepth})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, a.Close()) })
		return a
	}
	far, near := agent("127.0.0.1:0"), agent("")
	_, err := far.Register("blocks", make([]byte, benchMemory), mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(b, err)
	memory := make([]byte, benchMemory)
	_, err = near.Register("", memory, mmap.LocalReadWrite)
	require.NoError(b, err)
	peer, err := near.Dial(ctx, far.Addrs()[0].String())
	require.NoError(b, err)
	blocks, err := peer.Segment(ctx, "blocks")
	require.NoError(b, err)
	return func(n int) {
		var batch transfer.Batch
		batch.Grow(n)
		for i := range n {
			at := i * size % benchMemory
			batch.Write(blocks, at, memory[at:][:size])
		}
		h, err := near.Submit(&batch)
		require.NoError(b, err)
		require.NoError(b, h.Wait(ctx))
	}
}

// end is one end of a connection of package rdma. Its engine has a goroutine, as those of agents have.
type end struct {
	engine *pe.Engine
	rdma   *rdma.Connections
	memory *mmap.Map
}

func newEnd(b *testing.B, name string) *end {
	dev, e := openDevice(b, name), &end{engine: pe.New(pe.Config{})}
	var err error
	e.rdma, err = rdma.New(dev, rdma.Config{Engine: e.engine, SendQueueSize: benchDepth + 4, Permissions: mmap.RemoteWrite})
	require.NoError(b, err)
	e.memory, err = mmap.Register(dev, make([]byte, benchMemory), mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.memory.Close()) })
	require.NoError(b, e.rdma.Start())
	return e
}

// run runs the engine until the end of the benchmark.
func (e *end) run(b *testing.B) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.engine.Run(ctx) // says that it was stopped
	}()
	b.Cleanup(func() {
		stop()
		<-ended
		require.NoError(b, e.engine.Close())
	})
}

// newLoop returns a function that makes n writes by hand.
func newLoop(b *testing.B, dev string, size int) func(n int) {
	far, near := newEnd(b, dev), newEnd(b, dev)
	l, err := far.rdma.Listen(":0", rdma.ListenConfig{})
	require.NoError(b, err)
	key, err := far.memory.ExportKey(far.rdma.PD())
	require.NoError(b, err)
	remote, err := mmap.FromKey(near.rdma.Device(), far.memory.Addr(), benchMemory, key, mmap.RemoteWrite)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, remote.Close()) })
	far.run(b)

	done := make(chan error, 1)
	begun, ended, goal := 0, 0, 0
	var conn *rdma.Connection
	var pool *rdma.Pool
	next := func() {
		if begun == goal {
			return
		}
		at := begun * size % benchMemory
		begun++
		t, err := pool.Write(conn, bufinv.Source(near.memory, at, size), bufinv.Target(remote, at, size))
		if err == nil {
			err = t.Submit(pe.Aggregate)
		}
		if err != nil {
			done <- err
		}
	}
	pool, err = near.rdma.Pool(benchDepth, func(t *rdma.Task) {
		_ = t.Free()
		if ended++; ended == goal {
			done <- nil
		}
		next()
	}, func(t *rdma.Task, err error) { _ = t.Free(); done <- err })
	require.NoError(b, err)
	near.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, err error) {
		switch s {
		case rdma.Ready:
			done <- nil
		case rdma.Failed:
			done <- err
		}
	})
	conn, err = near.rdma.Dial(netip.AddrPortFrom(far.rdma.GID().GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{})
	require.NoError(b, err)
	near.run(b)
	require.NoError(b, <-done)
	return func(n int) {
		require.NoError(b, near.engine.Do(func() {
			begun, ended, goal = 0, 0, n
			for range min(benchDepth, n) {
				next()
			}
		}))
		require.NoError(b, <-done)
	}
}
