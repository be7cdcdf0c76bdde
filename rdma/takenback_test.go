package rdma_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// takingBack are the ways in which a program gets memory back that it has lent to a peer.
var takingBack = []struct {
	name string
	do   func(r *rig, lent *mmap.Map)
}{
	{"the memory map is closed", func(r *rig, lent *mmap.Map) { require.NoError(r.t, lent.Close()) }},
	{"the connection is closed", func(r *rig, _ *mmap.Map) {
		require.NoError(r.t, r.a.conns[0].Close())
		r.until("it is closed", func() bool { return slices.Contains(r.a.reported, rdma.Closed.String()) })
	}},
	{"the context stops", func(r *rig, _ *mmap.Map) {
		require.NoError(r.t, r.a.ctx.Stop())
		r.until("it is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
	}},
}

// Memory that was lent to a peer is the program's own again when the call has returned that takes
// it back, or has been reported: the peer's writes do not change it, and its reads do not see what
// is written to it then.
func TestMemoryTakenBack(t *testing.T) {
	for name, open := range map[string]func(*testing.T) verbs.Device{"shared memory": openSoft, "UDP": openByUDP} {
		t.Run(name, func(t *testing.T) { testTakenBack(t, open(t), open(t), 10) })
	}
}

func testTakenBack(t *testing.T, owner, peer verbs.Device, rounds int) {
	for _, way := range takingBack {
		t.Run(way.name, func(t *testing.T) {
			for i := range rounds {
				takeBack(t, owner, peer, 5*i, way.do)
			}
		})
	}
}

// takeBack has a peer read and write 1 MiB again and again, and takes the memory back after some
// calls of Progress.
func takeBack(t *testing.T, owner, peer verbs.Device, after int, do func(*rig, *mmap.Map)) {
	const (
		before, theirs, ours = 1, 2, 3 // what each byte is
		size                 = 1 << 20
		times                = 6
	)
	// A test of its own: what it makes is closed before the next.
	t.Run("", func(t *testing.T) {
		r := newRigOn(t, owner, peer, rdma.Config{}, rdma.Config{})
		memory, free, err := mmap.AllocBytes(size)
		if device, ok := owner.(optional.MemoryDevice); ok { // memory that others of the machine can map
			if shared, freeShared, notAble := device.AllocMemory(size); notAble == nil {
				require.NoError(t, free())
				memory, free = shared, freeShared
			}
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, free()) })
		set := func(b []byte, value byte) { copy(b, bytes.Repeat([]byte{value}, len(b))) }
		set(memory, before)
		set(r.b.mem.Bytes(), theirs)
		lent := must(mmap.New(owner, mmap.Config{Memory: memory, Permissions: everything}))
		t.Cleanup(func() { _ = lent.Close() })
		theirMap := must(mmap.Import(peer, must(lent.Export(owner))))
		t.Cleanup(func() { require.NoError(t, theirMap.Close()) })

		ended, read := 0, r.b.mem.Bytes()[size:2*size]
		pool := anyPool(r.b.ctx)
		r.connect(1)
		for i := range times {
			var task *rdma.Task
			if i%2 == 0 {
				task = must(pool.Write(r.b.conns[0], r.b.bufs.Source(r.b.mem, 0, size), r.b.bufs.Target(theirMap, 0, size)))
			} else {
				task = must(pool.Read(r.b.conns[0], r.b.bufs.Source(theirMap, 0, size), r.b.bufs.Target(r.b.mem, size, size)))
			}
			require.NoError(t, pe.SubmitOrFree(task, nil, func(task *rdma.Task, _ error) {
				ended++
				assert.NoError(t, task.Free())
			}))
		}
		for range after {
			_, err := r.engine.Progress()
			require.NoError(t, err)
		}
		do(r, lent)
		set(memory, ours)
		r.until("the peer's tasks have ended", func() bool { return ended == times })
		assert.Equal(t, size, bytes.Count(memory, []byte{ours}), "bytes that the peer has not changed")
		assert.Zero(t, bytes.Count(read, []byte{ours}), "bytes that the peer has read")
	})
}
