package rdma_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// What drives the engine fails in every kind of callback, and says so; nothing
// else is harmed.
func TestEngineDrivenInsideCallbacks(t *testing.T) { sim.Check(t, 2, testEngineDrivenInsideCallbacks) }

func testEngineDrivenInsideCallbacks(s *sim.Sim) {
	t := testOf(s)
	r := newSimRig(s, rdma.Config{CloseTimeout: rdma.None}, rdma.Config{})
	tried := map[string]bool{}
	try := func(where string) {
		tried[where] = true
		_, err := r.engine.Progress()
		for call, err := range map[string]error{
			"call Progress": err, "call Run": r.engine.Run(t.Context()),
			"arm the notification": r.engine.Arm(), "close the engine": r.engine.Close(),
		} {
			require.ErrorIs(t, err, pe.ErrReentrant, "%s in a callback for %s", call, where)
			require.ErrorContains(t, err, call)
		}
	}
	done := func(*rdma.Task) { try("a task") }
	failed := func(*rdma.Task, error) { try("a failed task") }
	pool := must(r.a.ctx.Pool(1, done, failed))
	r.a.ctx.OnConnection(func(*rdma.Connection, rdma.ConnectionState, error) { try("a connection") })
	r.b.ctx.OnStateChange(func(_, next pe.State) { try("a change to " + next.String()) })
	r.connect(1)
	task := must(pool.Write(r.a.conns[0], nil, nil))
	require.NoError(t, task.Submit())
	r.until("it is done", func() bool { return tried["a task"] })
	require.NoError(t, task.Submit())
	require.NoError(t, r.a.ctx.Stop())
	r.until("it has failed", func() bool { return tried["a failed task"] })
	require.NoError(t, task.Free())
	require.NoError(t, r.engine.Do(func() { try("a function") }))
	require.NoError(t, r.b.ctx.Stop())
	r.until("all is reported", func() bool { return r.engine.Active() == 0 && tried["a change to Idle"] })
	assert.Len(t, tried, 8, "%v", tried)
}

// What belongs to the goroutine that drives the engine fails on another one.
func TestEngineDrivenByTwoGoroutines(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{})
	r.connect(1)
	extra, _ := must2(r.a.ctx.Export())
	idle := must(rdma.New(r.a.dev, rdma.Config{}))
	entered, leave := make(chan struct{}), make(chan struct{})
	require.NoError(t, r.engine.Do(func() { close(entered); <-leave }))
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() { assert.ErrorIs(t, r.engine.Run(ctx), context.Canceled) })
	<-entered
	_, progress := r.engine.Progress()
	_, _, export := r.a.ctx.Export()
	for name, err := range map[string]error{
		"Engine.Progress": progress, "Engine.Run": r.engine.Run(t.Context()), "Engine.Close": r.engine.Close(),
		"Engine.Arm": r.engine.Arm(), "Engine.Connect": r.engine.Connect(idle),
		"Context.Start": r.a.ctx.Start(), "Context.Stop": r.a.ctx.Stop(), "Context.Close": r.a.ctx.Close(),
		"Context.Export": export, "Connection.Connect": extra.Connect(nil), "Connection.Close": extra.Close(),
	} {
		assert.ErrorIs(t, err, pe.ErrBusy, name)
		assert.ErrorContains(t, err, "Engine.Do", name)
	}
	close(leave)
	cancel()
	wg.Wait()
	assert.Nil(t, idle.Engine())
	require.NoError(t, idle.Close())
}

func TestContextOnTwoEngines(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	other := pe.New(pe.Config{})
	err := other.Connect(r.a.ctx)
	require.ErrorIs(t, err, pe.ErrInUse)
	require.ErrorContains(t, err, `context "a"`)
	require.ErrorIs(t, r.engine.Connect(r.a.ctx), pe.ErrInUse)
	require.Same(t, r.engine, r.a.ctx.Engine())
	require.NoError(t, other.Close())
	r.connect(1) // it still works on the first
}

func TestUseAfterClose(t *testing.T) {
	dev := must(soft.Open(soft.Config{}))
	engine := pe.New(pe.Config{})
	c := must(rdma.New(dev, rdma.Config{}))
	writes := must(c.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	recvs := must(c.ReceivePool(1, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	pd := must(dev.AllocPD())
	mem := must(mmap.Alloc(dev, 4096, everything))
	peer := must(mmap.Import(dev, must(mem.Export(dev))))
	bufs := must(bufinv.New(1))
	pool := must(bufinv.NewPool(mem, bufinv.PoolConfig{Count: 1, Size: 8}))
	require.NoError(t, engine.Connect(c))
	require.NoError(t, c.Start())
	conn, desc := must2(c.Export())
	require.NoError(t, conn.Close())
	require.ErrorIs(t, conn.Connect(desc), rdma.ErrNotReady)
	require.NoError(t, c.Stop())
	for c.State() != pe.Idle {
		must(engine.Progress())
	}
	require.NoError(t, pool.Close())
	require.NoError(t, bufs.Close())
	source := bufs.Source(mem, 0, 8)
	require.NoError(t, peer.Close())
	require.NoError(t, mem.Close())
	for range 2 {
		require.NoError(t, c.Close())
		require.NoError(t, engine.Close())
		require.NoError(t, pd.Close())
		require.NoError(t, dev.Close())
	}
	second := func(_ any, err error) error { return err }
	_, _, export := c.Export()
	for name, c := range map[string]struct{ got, want error }{
		"Engine.Progress":   {second(engine.Progress()), pe.ErrClosed},
		"Engine.Run":        {engine.Run(t.Context()), pe.ErrClosed},
		"Engine.Do":         {engine.Do(func() {}), pe.ErrClosed},
		"Engine.Arm":        {engine.Arm(), pe.ErrClosed},
		"Engine.Clear":      {engine.Clear(), pe.ErrClosed},
		"Engine.Connect":    {engine.Connect(must(rdma.New(dev, rdma.Config{}))), pe.ErrClosed},
		"Context.Start":     {c.Start(), pe.ErrClosed},
		"Context.Export":    {export, pe.ErrClosed},
		"Context.Pool":      {second(c.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {})), pe.ErrClosed},
		"Pool.Write":        {second(writes.Write(conn, nil, nil)), pe.ErrClosed},
		"ReceivePool.Alloc": {second(recvs.Alloc(nil)), pe.ErrClosed},
		"connecting it":     {pe.New(pe.Config{}).Connect(c), pe.ErrClosed},
		"Connection":        {conn.Connect(desc), rdma.ErrNotReady},
		"Map.Export":        {second(mem.Export(dev)), mmap.ErrClosed},
		"Map.LKey":          {second(mem.LKey(dev.DefaultPD())), mmap.ErrClosed},
		"Inventory.Source":  {source.Err(), bufinv.ErrClosed},
		"Pool.Alloc":        {pool.Alloc().Err(), bufinv.ErrClosed},
		"Device.CreateCQ":   {second(dev.CreateCQ(verbs.CQInit{Capacity: 1})), verbs.ErrClosed},
		"Device.AllocPD":    {second(dev.AllocPD()), verbs.ErrClosed},
		"mmap.Alloc":        {second(mmap.Alloc(dev, 8, everything)), verbs.ErrClosed},
		"PD.CreateSRQ":      {second(pd.CreateSRQ(verbs.SRQInit{MaxWR: 1, MaxSGE: 1})), verbs.ErrClosed},
	} {
		assert.ErrorIs(t, c.got, c.want, name)
	}
	for _, o := range []interface{ Close() error }{c, engine, mem, bufs, pool, pd, dev} {
		assert.NoError(t, o.Close(), "closing again does nothing")
	}
	open := must(bufinv.New(1))
	assert.ErrorIs(t, open.Source(mem, 0, 8).Err(), mmap.ErrClosed)
	assert.ErrorIs(t, open.Target(peer, 0, 8).Err(), mmap.ErrClosed)
	require.NoError(t, open.Close())
}

// Every kind of task refuses to be submitted or changed in flight, and to be used
// when it has been freed.
func TestTasksUsedTwice(t *testing.T) { sim.Check(t, 2, testTasksUsedTwice) }

func testTasksUsedTwice(s *sim.Sim) {
	t := testOf(s)
	r := newSimRig(s, rdma.Config{}, rdma.Config{})
	a, back := r.a, 0
	tasks := everyKind(r, func() { back++ })
	submitEach(t, tasks)
	for _, task := range tasks {
		for _, err := range []error{task.Submit(), task.Submit(pe.Aggregate), task.TrySubmit(), task.Free()} {
			require.ErrorIs(t, err, pe.ErrInUse, "%v in flight", task.Operation())
		}
		require.ErrorContains(t, task.Submit(), task.Operation().String())
		for _, err := range setAll(r, task) {
			require.ErrorIs(t, err, pe.ErrInUse, "%v in flight", task.Operation())
		}
		require.True(t, task.InFlight())
	}
	require.NoError(t, r.engine.Do(func() { require.ErrorIs(t, a.ctx.Close(), pe.ErrReentrant) }))
	_ = must(r.engine.Progress())
	require.NoError(t, a.ctx.Stop())
	r.until("all are back", func() bool { return back == len(tasks) })
	for _, task := range tasks {
		require.ErrorIs(t, task.Submit(), pe.ErrBadState, "%v in Stopping", task.Operation())
		require.NoError(t, task.Free())
		for _, err := range []error{task.Submit(), task.Submit(pe.Aggregate), task.TrySubmit(), task.Free()} {
			require.ErrorIs(t, err, pe.ErrFreed, "%v after Free", task.Operation())
		}
		for _, err := range setAll(r, task) {
			require.ErrorIs(t, err, pe.ErrFreed, "%v after Free", task.Operation())
		}
	}
	require.Equal(t, a.bufs.Total(), a.bufs.Available(), "setters take buffers over in any case")
	require.Equal(t, len(tasks), back, "each came back once")
	require.Zero(t, a.ctx.Allocated())
}

// setAll calls every setter that a task has.
func setAll(r *rig, task anyTask) []error {
	a := r.a
	buf := func() *bufinv.Buf { return a.bufs.Source(a.mem, 0, 8) }
	t, ok := task.(*rdma.Task)
	if !ok {
		return []error{task.(*rdma.ReceiveTask).SetDestination(buf())}
	}
	return []error{
		t.SetConnection(a.conns[0]), t.SetSource(buf()), t.SetDestination(buf()), t.SetResult(buf()), t.SetAppend(true),
		t.SetImm(1), t.SetValue(1), t.SetValues(1, 2), t.SetInvalidate(nil), t.SetEvent(nil),
	}
}

// everyKind connects, and makes one task of each kind at a.
func everyKind(r *rig, back func()) []anyTask {
	c, bufs, mem := r.a.ctx, r.a.bufs, r.a.mem
	sends := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	sendImms := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	writes := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	writeImms := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	reads := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	swaps := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	adds := must(c.Pool(1, done[*rdma.Task](back), failed[*rdma.Task](back)))
	recvs := must(c.ReceivePool(1, done[*rdma.ReceiveTask](back), failed[*rdma.ReceiveTask](back)))
	r.connect(1)
	conn, peer := r.a.conns[0], r.a.peer
	return []anyTask{
		must(sends.Send(conn, bufs.Source(mem, 0, 8))),
		must(sendImms.SendImm(conn, bufs.Source(mem, 0, 8), 1)),
		must(writes.Write(conn, bufs.Source(mem, 0, 8), bufs.Target(peer, 0, 8))),
		must(writeImms.WriteImm(conn, bufs.Source(mem, 0, 8), bufs.Target(peer, 0, 8), 1)),
		must(reads.Read(conn, bufs.Source(peer, 0, 8), bufs.Target(mem, 0, 8))),
		must(swaps.CompareSwap(conn, bufs.Target(peer, 0, 8), 0, 1)),
		must(adds.FetchAdd(conn, bufs.Target(peer, 0, 8), 1)),
		must(recvs.Alloc(bufs.Target(mem, 0, 8))),
	}
}

func done[T anyTask](f func()) func(T) { return func(T) { f() } }

func failed[T anyTask](f func()) func(T, error) { return func(T, error) { f() } }

// A buffer that was freed is refused by Alloc, by Submit, and when it was freed in
// flight.
func TestBuffersUsedAfterFree(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var reads outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, reads.ok, reads.bad))
	r.connect(1)
	source := func() *bufinv.Buf { return r.a.bufs.Source(r.a.peer, 0, 8) }
	gone := r.a.bufs.Target(r.a.mem, 0, 8)
	require.NoError(t, gone.Free())
	_, err := pool.Read(r.a.conns[0], source(), gone)
	require.ErrorIs(t, err, bufinv.ErrFreed)

	dst := r.a.bufs.Target(r.a.mem, 0, 8)
	task := must(pool.Read(r.a.conns[0], source(), dst))
	require.ErrorIs(t, task.SetDestination(gone), bufinv.ErrFreed)
	require.NoError(t, dst.Free(), "the task's reference, which is not the caller's to drop")
	require.ErrorIs(t, task.Submit(), bufinv.ErrFreed)
	require.ErrorIs(t, task.TrySubmit(), bufinv.ErrFreed)
	require.False(t, task.InFlight())
	require.ErrorIs(t, task.Free(), bufinv.ErrFreed)
	require.Equal(t, 1, pool.Available(), "the task has been freed all the same")

	dst = r.a.bufs.Target(r.a.mem, 0, 8)
	task = must(pool.Read(r.a.conns[0], source(), dst))
	require.NoError(t, task.Submit())
	require.NoError(t, dst.Free())
	r.until("it is back", func() bool { return reads.count() == 1 })
	require.Len(t, reads.errs, 1)
	require.ErrorIs(t, reads.errs[0], bufinv.ErrFreed)
	require.ErrorIs(t, task.Free(), bufinv.ErrFreed)
}
