package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// forged imports the memory of b at a with other claims than b's.
func (r *rig) forged(edit func(addr, size *uint64, rkey, perm *uint32)) *mmap.Map {
	desc := must(r.b.mem.Export(r.b.dev))
	var addr, size uint64
	var rkey, perm uint32
	code := func(c *wirecode.Coder) {
		c.Uint64(&addr)
		c.Uint64(&size)
		c.Uint32(&rkey)
		c.Uint32(&perm)
	}
	in := wirecode.ReadFrom(must(descriptor.Decode(descriptor.MemoryMap, desc)))
	code(in)
	require.NoError(r.t, in.Done())
	edit(&addr, &size, &rkey, &perm)
	var out wirecode.Coder
	code(&out)
	return must(mmap.Import(r.a.dev, must(descriptor.Encode(descriptor.MemoryMap, must(out.Payload())))))
}

func TestRefusedByThePeer(t *testing.T) {
	for _, c := range []struct {
		name   string
		peer   rdma.Config
		open   func(r *rig) *mmap.Map
		off    int
		status verbs.Status
		want   error
	}{
		{"wrong key", rdma.Config{}, func(r *rig) *mmap.Map {
			return r.forged(func(_, _ *uint64, rkey, _ *uint32) { *rkey ^= 0xffff })
		}, 0, verbs.StatusRemoteAccessError, rdma.ErrRemoteAccess},
		{"beyond the end", rdma.Config{}, func(r *rig) *mmap.Map {
			return r.forged(func(_, size *uint64, _, _ *uint32) { *size += 4096 })
		}, memorySize - 8, verbs.StatusRemoteAccessError, rdma.ErrRemoteAccess},
		{"before the start", rdma.Config{}, func(r *rig) *mmap.Map {
			return r.forged(func(addr, _ *uint64, _, _ *uint32) { *addr -= 8 })
		}, 0, verbs.StatusRemoteAccessError, rdma.ErrRemoteAccess},
		{"memory map does not permit it", rdma.Config{}, func(r *rig) *mmap.Map {
			m := must(mmap.Alloc(r.b.dev, memorySize, mmap.LocalReadWrite|mmap.RemoteRead))
			r.t.Cleanup(func() { require.NoError(r.t, m.Close()) })
			own := r.b.mem
			r.b.mem = m
			defer func() { r.b.mem = own }()
			return r.forged(func(_, _ *uint64, _, perm *uint32) { *perm = uint32(mmap.RemoteWrite) })
		}, 0, verbs.StatusRemoteAccessError, rdma.ErrRemoteAccess},
		{"wrong protection domain", rdma.Config{}, func(r *rig) *mmap.Map {
			pd := must(r.b.dev.AllocPD())
			m := must(mmap.New(r.b.dev, mmap.Config{Size: memorySize, Permissions: everything, PD: pd}))
			r.t.Cleanup(func() {
				require.NoError(r.t, m.Close())
				require.NoError(r.t, pd.Close())
			})
			return must(mmap.Import(r.a.dev, must(m.ExportPD(pd))))
		}, 0, verbs.StatusRemoteAccessError, rdma.ErrRemoteAccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rdma.Config{}, c.peer)
			var writes outcome[*rdma.Task]
			pool := must(r.a.ctx.Pool(3, writes.ok, writes.bad))
			r.connect(1)
			remote := c.open(r)
			fill(r.a.mem.Bytes(), 3)
			var tasks []*rdma.Task
			for range 3 {
				task, err := pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 16), r.a.bufs.Target(remote, c.off, 16))
				require.NoError(t, err)
				tasks = append(tasks, task)
			}
			_, err := rdma.SubmitAll(tasks, 0)
			require.NoError(t, err)
			r.until("the writes failed, and both ends noticed", func() bool {
				return writes.count() == 3 && r.a.ctx.State() != pe.Running && r.b.ctx.State() != pe.Running
			})
			require.Len(t, writes.errs, 3)
			var failure *rdma.TaskError
			require.ErrorAs(t, writes.errs[0], &failure)
			assert.Equal(t, c.status, failure.Status, "%v", failure)
			assert.Equal(t, rdma.OpWrite, failure.Op)
			assert.Same(t, r.a.conns[0], failure.Connection)
			assert.ErrorIs(t, writes.errs[0], c.want)
			assert.ErrorIs(t, writes.errs[1], rdma.ErrFlushed)
			assert.ErrorIs(t, writes.errs[2], rdma.ErrFlushed)
			assert.ErrorIs(t, writes.errs[2], c.want, "why the connection ended")
			assert.ErrorIs(t, r.a.ctx.Err(), c.want)
			assert.ErrorIs(t, r.b.ctx.Err(), rdma.ErrPeerRefused)
			assert.Equal(t, []string{"Ready", "Failed"}, r.a.reported[:2])
			same(t, make([]byte, memorySize), r.b.mem.Bytes())
			require.NoError(t, rdma.FreeAll(tasks))
			require.NoError(t, remote.Close())
		})
	}
}

func TestClosedMemoryIsRefused(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var reads outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, reads.ok, reads.bad))
	r.connect(1)
	gone := must(mmap.Alloc(r.b.dev, 4096, mmap.RemoteRead))
	remote := must(mmap.Import(r.a.dev, must(gone.Export(r.b.dev))))
	require.NoError(t, gone.Close())
	task, err := pool.Read(r.a.conns[0], r.a.bufs.Source(remote, 0, 8), r.a.bufs.Target(r.a.mem, 0, 8))
	require.NoError(t, err)
	require.NoError(t, task.TrySubmit())
	r.until("the read failed", func() bool { return reads.count() == 1 })
	assert.ErrorIs(t, reads.errs[0], rdma.ErrRemoteAccess)
	assert.Zero(t, task.Destination().DataLen())
	require.NoError(t, task.Free())
	require.NoError(t, remote.Close())
}

func TestReceiveTooSmall(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	sendPool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	r.connect(1)
	recv := must(recvPool.Alloc(r.b.bufs.Target(r.b.mem, 0, 7)))
	require.NoError(t, recv.Submit())
	send := must(sendPool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8)))
	require.NoError(t, send.Submit())
	r.until("both ends failed", func() bool { return sends.count() == 1 && recvs.count() == 1 })
	require.Len(t, recvs.errs, 1)
	assert.ErrorIs(t, recvs.errs[0], rdma.ErrLocalLength)
	require.Len(t, sends.errs, 1)
	assert.ErrorIs(t, sends.errs[0], rdma.ErrRemoteInvalid)
	require.NoError(t, recv.Free())
	require.NoError(t, send.Free())
}

func TestNoReceivePosted(t *testing.T) {
	runSimulated(t, "retries limited", 2, func(t *testing.T, s *sim.Sim) {
		r := newSimRig(s, rdma.Config{RNRRetry: 1}, rdma.Config{})
		var sends outcome[*rdma.Task]
		pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
		r.connect(1)
		send := must(pool.Send(r.a.conns[0], nil))
		require.NoError(t, send.Submit())
		r.until("the send failed", func() bool { return sends.count() == 1 })
		require.Len(t, sends.errs, 1)
		assert.ErrorIs(t, sends.errs[0], rdma.ErrRNRRetryExceeded)
		require.NoError(t, send.Free())
	})
	runSimulated(t, "retries unlimited", 2, func(t *testing.T, s *sim.Sim) {
		r := newSimRig(s, rdma.Config{}, rdma.Config{})
		var sends outcome[*rdma.Task]
		var recvs outcome[*rdma.ReceiveTask]
		sendPool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
		recvPool := must(r.b.ctx.ReceivePool(1, recvs.ok, recvs.bad))
		r.connect(1)
		send := must(sendPool.Send(r.a.conns[0], nil))
		require.NoError(t, send.Submit())
		r.drive(20 * time.Millisecond) // many retries are made
		require.Zero(t, sends.count())
		recv := must(recvPool.Alloc(nil))
		require.NoError(t, recv.Submit())
		r.until("the message has arrived", func() bool { return len(sends.done) == 1 && len(recvs.done) == 1 })
		require.NoError(t, send.Free())
		require.NoError(t, recv.Free())
	})
}

func TestPeerVanishes(t *testing.T) { sim.Check(t, 3, testPeerVanishes) }

func testPeerVanishes(s *sim.Sim) {
	t := testOf(s)
	r := newSimRig(s, rdma.Config{AckTimeout: time.Millisecond}, rdma.Config{})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(8, writes.ok, writes.bad))
	r.connect(1)
	s.Cut(s.Host("b"), s.Host("a"))
	var tasks []*rdma.Task
	for range 8 {
		tasks = append(tasks, must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 1<<20), r.a.bufs.Target(r.a.peer, 0, 1<<20))))
	}
	_, err := rdma.SubmitAll(tasks, 0)
	require.NoError(t, err)
	r.until("all failed", func() bool { return writes.count() == 8 })
	require.Len(t, writes.errs, 8)
	assert.ErrorIs(t, writes.errs[0], rdma.ErrRetryExceeded)
	for _, err := range writes.errs[1:] {
		assert.ErrorIs(t, err, rdma.ErrFlushed)
	}
	assert.Equal(t, []string{"Ready", "Failed"}, r.a.reported[:2])
	assert.ErrorIs(t, r.a.conns[0].Err(), rdma.ErrRetryExceeded)
	assert.ErrorIs(t, r.a.ctx.Err(), rdma.ErrRetryExceeded)
	require.NoError(t, rdma.FreeAll(tasks))
}

// One of several connections fails: the others go on, and its place can be used
// again.
func TestOneOfSeveralFails(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(4, writes.ok, writes.bad))
	must(r.b.ctx.ReceivePool(1, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	r.connect(2)
	remote := r.forged(func(_, _ *uint64, rkey, _ *uint32) { *rkey ^= 1 })
	bad := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(remote, 0, 8)))
	require.NoError(t, bad.Submit())
	r.until("it failed at both ends", func() bool { return writes.count() == 1 && r.b.conns[0].State() == rdma.Failed })
	assert.Equal(t, rdma.Failed, r.a.conns[0].State())
	assert.ErrorIs(t, r.b.conns[0].Err(), rdma.ErrPeerRefused)
	require.ErrorIs(t, bad.Submit(), rdma.ErrNotReady)

	good := must(pool.Write(r.a.conns[1], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
	require.NoError(t, good.Submit())
	r.until("the other works", func() bool { return len(writes.done) == 1 })
	assert.Equal(t, pe.Running, r.a.ctx.State())
	assert.Equal(t, pe.Running, r.b.ctx.State())

	_, _, err := r.a.ctx.Export()
	require.ErrorIs(t, err, rdma.ErrFull)
	require.NoError(t, r.a.conns[0].Close())
	require.NoError(t, r.b.conns[0].Close())
	require.NoError(t, r.b.conns[0].Close(), "closing again")
	closed := func(reported []string) bool { return reported[len(reported)-1] == "Closed" }
	r.until("the places are free", func() bool { return closed(r.a.reported) && closed(r.b.reported) })
	a, _ := r.link()
	r.until("the new one is ready", func() bool { return a.State() == rdma.Ready && r.b.conns[2].State() == rdma.Ready })
	require.NoError(t, bad.SetConnection(a))
	require.NoError(t, bad.SetDestination(r.a.bufs.Target(r.a.peer, 0, 8)))
	require.NoError(t, bad.Submit())
	r.until("the new one works", func() bool { return len(writes.done) == 2 })
	require.NoError(t, good.Free())
	require.NoError(t, bad.Free())
	require.NoError(t, remote.Close())
}

func TestCloseWithTasksInFlight(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2, SendQueueSize: 2}, rdma.Config{MaxConnections: 2})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(8, writes.ok, writes.bad))
	r.connect(2)
	var tasks []*rdma.Task
	for range 8 {
		tasks = append(tasks, must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 1<<20), r.a.bufs.Target(r.a.peer, 0, 1<<20))))
	}
	_, err := rdma.SubmitAll(tasks, 0)
	require.NoError(t, err)
	require.NoError(t, r.a.conns[0].Close())
	r.until("all came back", func() bool { return writes.count() == 8 })
	assert.NotEmpty(t, writes.errs)
	for _, err := range writes.errs {
		assert.ErrorIs(t, err, rdma.ErrFlushed)
	}
	assert.Equal(t, pe.Running, r.a.ctx.State(), "closing is no failure")
	require.NoError(t, rdma.FreeAll(tasks))
}

func TestStopInFlight(t *testing.T) { sim.Check(t, 20, testStopInFlight) }

func testStopInFlight(s *sim.Sim) {
	t := testOf(s)
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Jitter: 5 * time.Microsecond})
	r := newSimRig(s, rdma.Config{}, rdma.Config{})
	var writes outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	writes.then = func(task *rdma.Task) {
		if r.a.ctx.State() == pe.Running {
			require.NoError(t, task.Submit())
		} else {
			require.NoError(t, task.Free())
		}
	}
	recvs.then = func(task *rdma.ReceiveTask) { require.NoError(t, task.Free()) }
	pool := must(r.a.ctx.Pool(8, writes.ok, writes.bad))
	recvPool := must(r.a.ctx.ReceivePool(40, recvs.ok, recvs.bad))
	r.connect(1)
	for range 40 {
		require.NoError(t, must(recvPool.Alloc(nil)).Submit())
	}
	for range 8 {
		task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 30000), r.a.bufs.Target(r.a.peer, 0, 30000)))
		require.NoError(t, task.Submit())
	}
	r.until("some are done", func() bool { return writes.count() >= 3 })
	require.NoError(t, r.a.ctx.Stop())
	require.Equal(t, pe.Stopping, r.a.ctx.State())
	r.until("the context is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
	require.Equal(t, 8, pool.Available())
	require.Equal(t, 40, recvs.count())
	require.Equal(t, rdma.Closed, r.a.conns[0].State())
	for _, err := range append(writes.errs, recvs.errs...) {
		require.ErrorIs(t, err, rdma.ErrFlushed)
	}
}
