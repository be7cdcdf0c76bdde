package rdma_test

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

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

// However a device fails, tasks come back when what has their memory is destroyed, or the
// kernel says that the device is gone; otherwise with an error, and their memory is not given
// back before the device is closed.
func TestTasksEndWhenTheDeviceLetsGo(t *testing.T) {
	overrun := func(h *faultydevice.Hooks) {
		h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, verbs.ErrOverrun }
	}
	failures := map[string]func(*faultydevice.Device, rdma.Context) error{
		"modify fails": func(d *faultydevice.Device, c rdma.Context) error {
			d.WithholdCompletions()
			d.RefuseError(faultydevice.ErrBroken)
			return c.Stop()
		},
		"stop brings nothing back": func(d *faultydevice.Device, c rdma.Context) error {
			d.Hang()
			return c.Stop()
		},
		"device fails": func(d *faultydevice.Device, _ rdma.Context) error {
			d.Hang()
			d.Report(verbs.Event{Type: verbs.EventDeviceFatal})
			return nil
		},
		"completion queue fails": func(d *faultydevice.Device, _ rdma.Context) error {
			d.RefuseError(nil)
			d.Set(overrun)
			return nil
		},
		"completion queue fails while it stops": func(d *faultydevice.Device, c rdma.Context) error {
			d.Hang()
			err := c.Stop()
			d.Set(overrun)
			return err
		},
	}
	for name, fail := range failures {
		for _, transport := range []verbs.QPType{verbs.RC, verbs.UD, verbs.SRD} {
			for how, destroy := range map[string]error{"destroyed": nil, "gone": faultydevice.ErrGone, "not destroyed": faultydevice.ErrBroken} {
				t.Run(name+", "+transport.String()+", "+how, func(t *testing.T) {
					tasksEnd(t, transport, destroy, fail)
				})
			}
		}
	}
}

// tasksEnd has sends and receives under way on a device that fails.
func tasksEnd(t *testing.T, transport verbs.QPType, destroy error, fail func(*faultydevice.Device, rdma.Context) error) {
	const sends, receives = 3, 4 // the device has room for three receives, so that one waits
	kept := destroy == faultydevice.ErrBroken
	dev := must(faultydevice.Open(soft.Config{}))
	engine, bufs := pe.New(pe.Config{}), must(bufinv.New(64))
	dev.Set(func(h *faultydevice.Hooks) {
		h.Query = func(a *verbs.DeviceAttr) error {
			a.MaxSRQWR, a.SRD.MaxRecvWR = receives-1, receives-1
			if transport == verbs.UD {
				a.MaxQPWR = receives - 1
			}
			return nil
		}
	})
	var c rdma.Context
	var connections *rdma.Connections
	var datagrams *rdma.Datagrams
	if transport == verbs.RC {
		connections = must(rdma.New(dev, rdma.Config{Engine: engine, CloseTimeout: rdma.None}))
		connections.SetDrainTimeout(time.Millisecond)
		c = connections
	} else {
		datagrams = must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: transport, CloseTimeout: rdma.None}))
		datagrams.SetDrainTimeout(time.Millisecond)
		c = datagrams
	}
	source, target := must(mmap.Alloc(dev, 1<<16, mmap.LocalReadWrite)), must(mmap.Alloc(dev, 1<<16, mmap.LocalReadWrite))
	var asked [2]bool // of the queue pair, and of the queue that has the receives
	var order []string
	ended := 0
	check := func(posted bool, err error) {
		ended++
		assert.True(t, asked[0], "the queue pair lives")
		assert.ErrorIs(t, err, rdma.ErrFlushed)
		assert.Equal(t, kept && posted, errors.Is(err, rdma.ErrMemoryKept), "%v", err)
	}
	sent := func(*rdma.Task) { assert.Fail(t, "it was sent") }
	failed := func(task *rdma.Task, err error) {
		check(true, err)
		order = append(order, task.UserData().(string))
		assert.NoError(t, task.Free())
	}
	var send func(src *bufinv.Buf) (*rdma.Task, error)
	var pool *rdma.Pool
	var datagramPool *rdma.DatagramPool
	if connections != nil {
		pool = must(connections.Pool(sends, sent, failed))
	} else {
		datagramPool = must(datagrams.Pool(sends, sent, failed))
	}
	receivePool := must(c.ReceivePool(receives, func(*rdma.ReceiveTask) { assert.Fail(t, "it has come") }, func(task *rdma.ReceiveTask, err error) {
		assert.True(t, transport != verbs.RC || asked[1], "the shared receive queue lives")
		check(task.UserData() != "waiting", err)
		assert.NoError(t, task.Free())
	}))
	require.NoError(t, c.Start())
	if connections != nil {
		conn, desc := must2(connections.Export())
		require.NoError(t, conn.Connect(desc))
		send = func(src *bufinv.Buf) (*rdma.Task, error) { return pool.Send(conn, src) }
	} else {
		to := must(datagrams.PeerAt(must(datagrams.EndpointAddr())))
		send = func(src *bufinv.Buf) (*rdma.Task, error) { return datagramPool.Send(to, src) }
	}
	r := &rig{t: t, engine: engine}
	r.until("it runs", func() bool { return c.State() == pe.Running })
	dev.WithholdCompletions()
	posted := 0
	dev.Set(func(h *faultydevice.Hooks) {
		h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
			posted += len(wrs)
			return qp.PostSend(wrs)
		}
	})
	for i, name := range [receives]string{"first", "second", "third", "waiting"} {
		task := must(receivePool.Alloc(bufs.Target(target, 4096*i, 4096)))
		task.SetUserData(name)
		require.NoError(t, task.Submit())
	}
	for i := range sends {
		task := must(send(bufs.Source(source, 4096*i, 512)))
		task.SetUserData(string(rune('a' + i)))
		require.NoError(t, task.Submit())
	}
	r.until("the device has the sends", func() bool { return posted == sends })
	dev.Set(func(h *faultydevice.Hooks) {
		h.DestroyQP = func(qp verbs.QP) error {
			asked[0] = true
			if destroy != nil {
				return destroy
			}
			return qp.Close()
		}
		h.DestroySRQ = func(srq verbs.SRQ) error {
			asked[1] = true
			if destroy != nil {
				return destroy
			}
			return srq.Close()
		}
	})
	require.NoError(t, fail(dev, c))
	r.until("the context is Idle", func() bool {
		if s := c.State(); s != pe.Stopping { // a connection that has failed is not closed
			_ = c.Stop()
		}
		return c.State() == pe.Idle
	})
	require.Equal(t, sends+receives, ended)
	require.Equal(t, []string{"a", "b", "c"}, order)
	require.NoError(t, c.Close())
	require.NoError(t, engine.Close())
	require.NoError(t, bufs.Close())
	for _, m := range []*mmap.Map{source, target} {
		if !kept {
			require.NoError(t, m.Close())
			continue
		}
		require.Error(t, c.Err())
		err := m.Close()
		require.ErrorIs(t, err, mmap.ErrInUse)
		require.ErrorIs(t, err, mmap.ErrMemoryKept)
	}
	require.NoError(t, dev.Close())
}

// A device that does not put a queue pair in error goes on with a read. When the task comes
// back, not one more byte arrives.
func TestNothingArrivesAfterATaskHasComeBack(t *testing.T) {
	const size = 64 << 20
	engine := pe.New(pe.Config{})
	dev, far := must(faultydevice.Open(soft.Config{DisableLocal: true})), must(soft.Open(soft.Config{DisableLocal: true}))
	open := func(dev verbs.Device) *rdma.Connections {
		return must(rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 2, Permissions: everything, CloseTimeout: rdma.None, Keepalive: rdma.None}))
	}
	a, b := open(dev), open(far)
	source, target, next := must(mmap.Alloc(far, size, everything)), must(mmap.Alloc(dev, size, everything)), must(mmap.Alloc(dev, size, everything))
	for i := range source.Bytes() {
		source.Bytes()[i] = byte(i>>12) | 1
	}
	remote := must(mmap.Import(dev, must(source.Export(far))))
	bufs := must(bufinv.New(8))
	var before [sha256.Size]byte
	var reads outcome[*rdma.Task]
	reads.then = func(*rdma.Task) {
		if len(reads.failed) == 1 && len(reads.done) == 0 {
			before = sha256.Sum256(target.Bytes())
		}
	}
	pool := must(a.Pool(2, reads.ok, reads.bad))
	require.NoError(t, a.Start())
	require.NoError(t, b.Start())
	r := &rig{t: t, engine: engine}
	link := func() *rdma.Connection {
		x, ours := must2(a.Export())
		y, theirs := must2(b.Export())
		require.NoError(t, x.Connect(theirs))
		require.NoError(t, y.Connect(ours))
		r.until("they are connected", func() bool { return x.State() == rdma.Ready && y.State() == rdma.Ready })
		return x
	}
	conn := link()
	require.NoError(t, must(pool.Read(conn, bufs.Source(remote, 0, size), bufs.Target(target, 0, size))).Submit())
	r.until("the first bytes arrive", func() bool { return target.Bytes()[0] != 0 })
	dev.RefuseError(faultydevice.ErrBroken)
	require.NoError(t, conn.Close())
	r.until("the task comes back", func() bool { return len(reads.failed) == 1 })
	require.ErrorIs(t, reads.errs[0], rdma.ErrFlushed)
	require.NotErrorIs(t, reads.errs[0], rdma.ErrMemoryKept)
	// What would still come has the time of another read.
	require.NoError(t, must(pool.Read(link(), bufs.Source(remote, 0, size), bufs.Target(next, 0, size))).Submit())
	r.until("another read is done", func() bool { return len(reads.done) == 1 })
	require.Equal(t, before, sha256.Sum256(target.Bytes()), "bytes have arrived after the task")
	for _, task := range append(reads.done, reads.failed...) {
		require.NoError(t, task.Free())
	}
	dev.Heal()
	for _, o := range []interface{ Close() error }{a, b, engine, bufs, remote, source, target, next, dev, far} {
		require.NoError(t, o.Close())
	}
}

// A queue pair that the device did not empty in time is destroyed before its connection is
// closed. The next one may have its number, and keeps it.
func TestNumberOfADestroyedQueuePair(t *testing.T) {
	dev := openFaulty(t)
	r := newRigOn(t, dev, openSoft(t), rdma.Config{MaxConnections: 3, CloseTimeout: rdma.None}, rdma.Config{MaxConnections: 2})
	r.a.ctx.SetDrainTimeout(time.Millisecond)
	writes := outcome[*rdma.Task]{then: func(task *rdma.Task) { assert.NoError(t, task.Free()) }}
	pool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	r.connect(1)
	old := r.a.conns[0]
	must2(r.a.ctx.Export()) // the context goes on
	dev.Hang()
	require.NoError(t, must(pool.Write(old, r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8))).Submit())
	must(r.engine.Progress())
	var next *rdma.Connection
	writes.then = func(task *rdma.Task) {
		assert.NoError(t, task.Free())
		number := old.QPN()
		dev.Set(func(h *faultydevice.Hooks) { h.QPN = func(verbs.QP) uint32 { return number } })
		next, _ = must2(r.a.ctx.Export())
		dev.Set(func(h *faultydevice.Hooks) { h.QPN = nil })
	}
	dev.Report(verbs.Event{Type: verbs.EventQPFatal, QPN: old.QPN()})
	dev.Report(verbs.Event{Type: verbs.EventQPLastWQEReached, QPN: old.QPN()})
	r.until("the task comes back", func() bool { return writes.count() == 1 })
	require.ErrorIs(t, writes.errs[0], rdma.ErrFlushed)
	require.Equal(t, old.QPN(), next.QPN())
	require.NoError(t, old.Close())
	r.until("it is closed", func() bool { return r.a.closed() == 1 })
	require.Equal(t, rdma.Exported, next.State())
	dev.Report(verbs.Event{Type: verbs.EventQPFatal, QPN: next.QPN()})
	for range 100 {
		must(r.engine.Progress())
	}
	require.Equal(t, rdma.Failed, next.State(), "an event of its own")
	require.ErrorIs(t, next.Err(), rdma.ErrDevice)
	dev.Heal()
}
