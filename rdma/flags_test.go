package rdma_test

import (
	"cmp"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// Whatever the flags and the depth of the queues: every task comes back once, in
// order, without a later submission.
func TestEveryFlag(t *testing.T) {
	for _, depth := range []int{0, 1, 3} {
		for _, flags := range []pe.SubmitFlags{0, pe.Aggregate, pe.OptimizeReports, pe.Aggregate | pe.OptimizeReports} {
			limited := openFaulty(t)
			limited.Set(func(h *faultydevice.Hooks) {
				h.Query = func(a *verbs.DeviceAttr) error {
					a.MaxSRQWR = cmp.Or(depth, a.MaxSRQWR)
					return nil
				}
			})
			r := newRigOn(t, openSoft(t), limited, rdma.Config{SendQueueSize: depth}, rdma.Config{})
			const n = 100
			var imms outcome[*rdma.Task]
			var recvs outcome[*rdma.ReceiveTask]
			pool := must(r.a.ctx.Pool(n, imms.ok, imms.bad))
			recvPool := must(r.b.ctx.ReceivePool(n, recvs.ok, recvs.bad))
			r.connect(1)
			var receives []*rdma.ReceiveTask
			for range n {
				recv := must(recvPool.Alloc(nil))
				require.NoError(t, recv.Submit(flags))
				receives = append(receives, recv)
			}
			var writes []*rdma.Task
			for i := range n {
				imm := must(pool.WriteImm(r.a.conns[0], r.a.bufs.Source(r.a.mem, i*8, 8), r.a.bufs.Target(r.a.peer, i*8, 8), uint32(i)))
				require.NoError(t, imm.Submit(flags))
				require.True(t, imm.InFlight())
				writes = append(writes, imm)
			}
			require.Equal(t, n, r.a.ctx.InFlight())
			r.until("all are back", func() bool { return imms.count() == n && recvs.count() == n })
			require.Empty(t, append(imms.errs, recvs.errs...))
			assert.Equal(t, writes, imms.done)
			assert.Equal(t, receives, recvs.done)
			for i, recv := range recvs.done {
				value, _ := recv.Imm()
				require.EqualValues(t, i, value)
			}
			require.NoError(t, rdma.FreeAll(writes))
			require.NoError(t, rdma.FreeAll(receives))
		}
	}
}

// A task that waits for others starts at the next submission without the flag.
func TestAggregateWaits(t *testing.T) {
	dev := openSoft(t)
	pd := &watchedPD{PD: dev.DefaultPD()}
	r := newRigOn(t, dev, openSoft(t), rdma.Config{PD: pd}, rdma.Config{})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(2, writes.ok, writes.bad))
	r.connect(1)
	first := must(pool.Write(r.a.conns[0], nil, nil))
	second := must(pool.Write(r.a.conns[0], nil, nil))
	pd.posted = nil
	require.NoError(t, first.Submit(pe.Aggregate))
	assert.Empty(t, pd.posted)
	require.NoError(t, second.Submit())
	assert.Len(t, pd.posted, 2)
	r.until("both are done", func() bool { return len(writes.done) == 2 })
	require.NoError(t, first.Free())
	require.NoError(t, second.Free())
}

// Flush starts the tasks that wait, of all connections, and does nothing without.
func TestFlush(t *testing.T) {
	dev := openSoft(t)
	pd := &watchedPD{PD: dev.DefaultPD()}
	r := newRigOn(t, dev, openSoft(t), rdma.Config{PD: pd, MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(2, writes.ok, writes.bad))
	r.a.ctx.Flush() // in Idle
	r.connect(2)
	tasks := []*rdma.Task{must(pool.Write(r.a.conns[0], nil, nil)), must(pool.Write(r.a.conns[1], nil, nil))}
	pd.posted = nil
	must(rdma.SubmitAll(tasks, pe.Aggregate))
	assert.Empty(t, pd.posted)
	r.a.ctx.Flush()
	assert.Len(t, pd.posted, 2)
	r.a.ctx.Flush()
	assert.Len(t, pd.posted, 2)
	r.until("both are done", func() bool { return len(writes.done) == 2 })
	assert.Zero(t, testing.AllocsPerRun(2000, r.a.ctx.Flush))
	require.NoError(t, rdma.FreeAll(tasks))
}

// What a callback holds back starts at the end of the Progress that runs it, also
// where the callback is for a connection.
func TestAggregateInCallbacks(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(2, writes.ok, writes.bad))
	r.connect(1)
	var write *rdma.Task
	var before uint64
	submit := func(conn *rdma.Connection) {
		write = must(pool.Write(conn, nil, nil))
		require.NoError(t, write.Submit(pe.Aggregate))
		before = r.a.sent()
	}
	begun := func() bool { return write != nil }

	r.a.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Ready {
			submit(conn)
		}
	})
	r.link()
	r.until("a connection is ready", begun)
	assert.Greater(t, r.a.sent(), before, "submitted when the connection was ready")
	r.until("it is done", func() bool { return len(writes.done) == 1 })
	require.NoError(t, write.Free())

	write = nil
	writes.then = func(failed *rdma.Task) {
		if failed != write {
			require.NoError(t, failed.Free())
			submit(r.a.conns[0])
		}
	}
	lost := must(pool.Write(r.a.conns[1], nil, nil))
	require.NoError(t, lost.Submit(pe.Aggregate))
	require.NoError(t, r.a.conns[1].Close()) // it never reaches the device
	r.until("a task failed", begun)
	assert.Greater(t, r.a.sent(), before, "submitted when a task was flushed")
	r.until("it is done", func() bool { return len(writes.done) == 2 })
	require.NoError(t, write.Free())
}

// sent is how many packets the device has sent.
func (s *side) sent() uint64 {
	for _, c := range must(s.dev.Counters()) {
		if c.Name == "sent_pkts" {
			return c.Value
		}
	}
	return 0
}

func TestTaskMisuse(t *testing.T) {
	r := newRig(t, rdma.Config{MaxSGE: 2}, rdma.Config{})
	var writes outcome[*rdma.Task]
	var reads outcome[*rdma.Task]
	var sends outcome[*rdma.Task]
	var adds outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	writePool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	readPool := must(r.a.ctx.Pool(1, reads.ok, reads.bad))
	sendPool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	addPool := must(r.a.ctx.Pool(1, adds.ok, adds.bad))
	recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	_, err := writePool.Write(nil, nil, nil)
	require.ErrorIs(t, err, pe.ErrBadState)
	r.connect(1)
	_, err = r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad)
	require.ErrorIs(t, err, pe.ErrBadState)
	conn := r.a.conns[0]
	a, mem, peer := r.a, r.a.mem, r.a.peer
	readOnly := must(mmap.Alloc(a.dev, 64, mmap.LocalReadOnly))
	elsewhere := must(a.dev.AllocPD())
	foreign := must(mmap.New(a.dev, mmap.Config{Size: 64, Permissions: everything, PD: elsewhere}))
	noRead := r.forged(func(_, _ *uint64, _, perm *uint32) { *perm = uint32(mmap.RemoteWrite) })

	for _, c := range []struct {
		name  string
		want  error
		alloc func() error
	}{
		{"no connection", rdma.ErrInvalid, func() error { _, err := sendPool.Send(nil, nil); return err }},
		{"connection of another context", rdma.ErrInvalid, func() error { _, err := sendPool.Send(r.b.conns[0], nil); return err }},
		{"source without data", rdma.ErrNoData, func() error { _, err := sendPool.Send(conn, a.bufs.Target(mem, 0, 8)); return err }},
		{"source at the peer", mmap.ErrRemote, func() error { _, err := sendPool.Send(conn, a.bufs.Source(peer, 0, 8)); return err }},
		{"list too long", rdma.ErrRange, func() error { _, err := sendPool.Send(conn, a.sourceList(9, 3)); return err }},
		{"source in another domain", mmap.ErrNotRegistered, func() error { _, err := sendPool.Send(conn, a.bufs.Source(foreign, 0, 8)); return err }},
		{"write to here", rdma.ErrInvalid, func() error {
			_, err := writePool.Write(conn, a.bufs.Source(mem, 0, 8), a.bufs.Target(mem, 0, 8))
			return err
		}},
		{"write to nowhere", rdma.ErrInvalid, func() error { _, err := writePool.Write(conn, a.bufs.Source(mem, 0, 8), nil); return err }},
		{"destination too small", rdma.ErrRange, func() error {
			_, err := writePool.Write(conn, a.bufs.Source(mem, 0, 9), a.bufs.Target(peer, 0, 8))
			return err
		}},
		{"destination list", rdma.ErrInvalid, func() error {
			_, err := writePool.Write(conn, a.bufs.Source(mem, 0, 8),
				bufinv.List(a.bufs.Target(peer, 0, 8), a.bufs.Target(peer, 8, 8)))
			return err
		}},
		{"bad buffer", bufinv.ErrRange, func() error {
			_, err := writePool.Write(conn, a.bufs.Source(mem, 0, 0), a.bufs.Target(peer, 0, 8))
			return err
		}},
		{"read without permission", rdma.ErrPermission, func() error {
			_, err := readPool.Read(conn, a.bufs.Source(noRead, 0, 8), a.bufs.Target(mem, 0, 8))
			return err
		}},
		{"read of nothing", rdma.ErrNoData, func() error {
			_, err := readPool.Read(conn, a.bufs.Target(peer, 0, 8), a.bufs.Target(mem, 0, 8))
			return err
		}},
		{"read to too little room", rdma.ErrRange, func() error {
			_, err := readPool.Read(conn, a.bufs.Source(peer, 0, 8), a.bufs.Target(mem, 0, 7))
			return err
		}},
		{"read to read-only memory", mmap.ErrPermission, func() error {
			_, err := readPool.Read(conn, a.bufs.Source(peer, 0, 8), a.bufs.Target(readOnly, 0, 8))
			return err
		}},
		{"atomic out of line", rdma.ErrRange, func() error { _, err := addPool.FetchAdd(conn, a.bufs.Target(peer, 4, 8), 1); return err }},
		{"atomic on 7 bytes", rdma.ErrRange, func() error { _, err := addPool.FetchAdd(conn, a.bufs.Target(peer, 0, 7), 1); return err }},
		{"atomic result too small", rdma.ErrRange, func() error {
			add, err := addPool.FetchAdd(conn, a.bufs.Target(peer, 0, 8), 1)
			if err == nil {
				err = errors.Join(add.SetResult(a.bufs.Target(mem, 0, 7)), add.Submit(), add.Free())
			}
			return err
		}},
		{"receive list too long", rdma.ErrRange, func() error { _, err := recvPool.Alloc(a.targetList(9, 3)); return err }},
		{"receive into read-only memory", mmap.ErrPermission, func() error { _, err := recvPool.Alloc(a.bufs.Target(readOnly, 0, 8)); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, c.alloc(), c.want)
			require.Equal(t, a.bufs.Total(), a.bufs.Available(), "buffers leaked")
			require.Zero(t, a.ctx.Allocated())
		})
	}

	task := must(writePool.Write(conn, a.bufs.Source(mem, 0, 8), a.bufs.Target(peer, 0, 8)))
	_, err = writePool.Write(conn, a.bufs.Source(mem, 0, 8), a.bufs.Target(peer, 0, 8))
	require.ErrorIs(t, err, pe.ErrExhausted)
	require.Error(t, task.SetSource(a.bufs.Source(mem, 0, -1)))
	require.NoError(t, task.SetSource(a.bufs.Source(mem, 0, 9)))
	require.ErrorIs(t, task.Submit(), rdma.ErrRange)
	require.NoError(t, task.SetDestination(a.bufs.Target(peer, 0, 9)))
	require.NoError(t, task.Submit())
	require.ErrorIs(t, task.Submit(), pe.ErrInUse)
	require.ErrorIs(t, task.Free(), pe.ErrInUse)
	require.ErrorIs(t, task.SetSource(nil), pe.ErrInUse)
	require.ErrorIs(t, task.SetConnection(conn), pe.ErrInUse)
	r.until("it is done", func() bool { return len(writes.done) == 1 })
	require.NoError(t, task.Free())
	require.ErrorIs(t, task.Free(), pe.ErrFreed)
	require.ErrorIs(t, task.Submit(), pe.ErrFreed)
	require.NoError(t, readOnly.Close())
	require.NoError(t, noRead.Close())
	require.NoError(t, foreign.Close())
	require.NoError(t, elsewhere.Close())
}

// A network as bad as can be: every byte right, every task once.
func TestBadNetwork(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	const n = 32
	var writes outcome[*rdma.Task]
	var adds outcome[*rdma.Task]
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	writePool := must(r.a.ctx.Pool(n, writes.ok, writes.bad))
	addPool := must(r.a.ctx.Pool(n, adds.ok, adds.bad))
	sendPool := must(r.a.ctx.Pool(n, sends.ok, sends.bad))
	recvPool := must(r.b.ctx.ReceivePool(n, recvs.ok, recvs.bad))
	r.connect(1)
	bad := soft.Faults{Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Corrupt: 0.01, Seed: 42}
	require.NoError(t, r.a.dev.(*soft.Device).SetFaults(bad))
	require.NoError(t, r.b.dev.(*soft.Device).SetFaults(bad))
	fill(r.a.mem.Bytes(), 9)
	conn := r.a.conns[0]
	var tasks []*rdma.Task
	for i := range n {
		recv := must(recvPool.Alloc(r.b.bufs.Target(r.b.mem, 2<<20+i*10000, 10000)))
		require.NoError(t, recv.Submit())
		add := must(addPool.FetchAdd(conn, r.a.bufs.Target(r.a.peer, 0, 8), uint64(i)))
		write := must(writePool.Write(conn, r.a.bufs.Source(r.a.mem, i*30000, 30000), r.a.bufs.Target(r.a.peer, 1024+i*30000, 30000)))
		send := must(sendPool.SendImm(conn, r.a.bufs.Source(r.a.mem, i*10000, 10000), uint32(i)))
		tasks = append(tasks, add, write, send)
	}
	_, err := rdma.SubmitAll(tasks, pe.OptimizeReports)
	require.NoError(t, err)
	r.until("all is done", func() bool { return writes.count()+adds.count()+sends.count()+recvs.count() == 4*n })
	require.Empty(t, append(append(writes.errs, adds.errs...), append(sends.errs, recvs.errs...)...))
	same(t, r.a.mem.Bytes()[:n*30000], r.b.mem.Bytes()[1024:][:n*30000])
	sum := uint64(0)
	for i, add := range adds.done {
		assert.Equal(t, sum, add.Original())
		sum += uint64(i)
		imm, _ := recvs.done[i].Imm()
		assert.EqualValues(t, i, imm)
		same(t, r.a.mem.Bytes()[i*10000:][:10000], recvs.done[i].Destination().Bytes())
	}
	require.NoError(t, rdma.FreeAll(tasks))
	require.NoError(t, rdma.FreeAll(recvs.done))
}
