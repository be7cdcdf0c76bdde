package rdma_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// progress drives the engine once, and reports whether a callback panicked.
func (r *rig) progress() (panicked bool) {
	defer func() { panicked = recover() != nil }()
	_, err := r.engine.Progress()
	require.NoError(r.t, err)
	return false
}

// Every callback of a context that is being stopped panics: all tasks come back all
// the same, those that were never posted and receives included, and it becomes Idle.
func TestEveryCallbackPanics(t *testing.T) {
	for name, idle := range map[string]int{"at once": 0, "after idle passes": 20} {
		t.Run(name, func(t *testing.T) { everyCallbackPanics(t, idle) })
	}
}

func everyCallbackPanics(t *testing.T, idlePasses int) {
	r := newRig(t, rdma.Config{SendQueueSize: 1, MaxConnections: 2, CloseTimeout: rdma.None}, rdma.Config{MaxConnections: 2})
	back := 0
	bad := func() { back++; panic("mine") }
	writes := must(r.a.ctx.Pool(8, done[*rdma.Task](bad), failed[*rdma.Task](bad)))
	recvs := must(r.a.ctx.ReceivePool(3, done[*rdma.ReceiveTask](bad), failed[*rdma.ReceiveTask](bad)))
	r.connect(2)
	var tasks []anyTask
	for i := range 8 {
		tasks = append(tasks, must(writes.Write(r.a.conns[i%2], nil, nil)))
	}
	for range 3 {
		tasks = append(tasks, must(recvs.Alloc(nil)))
	}
	for range idlePasses {
		_ = must(r.engine.Progress())
	}
	submitEach(t, tasks)
	panics := 0
	r.a.ctx.OnConnection(func(*rdma.Connection, rdma.ConnectionState, error) { panics++; panic("mine too") })
	require.NoError(t, r.a.ctx.Stop())
	caught := 0
	for back < len(tasks) || panics < 2 {
		if r.progress() {
			caught++
		}
	}
	require.Equal(t, back+panics, caught)
	r.a.ctx.OnConnection(nil)
	freeEach(t, tasks)
	r.until("it is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
}

// A context that ends with its last connection goes on if the program exports another
// when it learns of the end, however often.
func TestAnotherAfterTheLastConnection(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{MaxConnections: 3, EndWithLastConnection: false})
	r.connect(1)
	spare, _ := must2(r.b.ctx.Export()) // so that b goes on
	closed := 0
	r.a.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if state != rdma.Closed {
			return
		}
		closed++
		require.Equal(t, pe.Running, r.a.ctx.State(), "when connection %d was closed", closed)
		if closed < 4 {
			r.link()
		}
	})
	for i := range 4 {
		r.until("it is ready", func() bool { return r.a.conns[i].State() == rdma.Ready })
		require.NoError(t, r.a.conns[i].Close())
		r.until("it is closed", func() bool { return closed == i+1 })
	}
	r.until("the context ends", func() bool { return r.a.ctx.State() == pe.Idle })
	require.NoError(t, r.a.ctx.Err())
	require.NoError(t, spare.Close())
}

// The longest times of all mean for ever.
func TestLongestTimes(t *testing.T) {
	longest := rdma.Config{ConnectTimeout: math.MaxInt64, Keepalive: math.MaxInt64, CloseTimeout: math.MaxInt64}
	r := newRig(t, longest, longest)
	r.connect(1)
	for range 20 {
		time.Sleep(time.Millisecond) // for a timer that goes off at once
		_ = must(r.engine.Progress())
	}
	require.Equal(t, rdma.Ready, r.a.conns[0].State())
	require.NoError(t, r.a.conns[0].Close())
	r.until("both are closed", func() bool {
		return r.a.conns[0].State() == rdma.Closed && r.b.conns[0].State() == rdma.Closed
	})
	assert.Greater(t, r.a.ctx.Config().Keepalive, 100*365*24*time.Hour)
}

// A connection that the device refuses fails with the reason, and another can be made.
func TestConnectThatTheDeviceRefuses(t *testing.T) {
	dev, engine := openFaulty(t), newEngine(t)
	dev.Set(func(h *faultydevice.Hooks) {
		h.Modify = func(qp verbs.QP, a verbs.QPAttr, mask verbs.QPAttrMask) error {
			if a.State == verbs.QPReadyToSend {
				return faultydevice.ErrBroken
			}
			return qp.Modify(a, mask)
		}
	})
	ctx := must(rdma.New(dev, rdma.Config{Engine: engine}))
	defer func() { require.NoError(t, ctx.Close()) }()
	require.NoError(t, ctx.Start())
	r := &rig{t: t, engine: engine}
	conn, own := must2(ctx.Export())
	require.NoError(t, conn.Connect(own))
	r.until("it fails", func() bool { return conn.State() == rdma.Failed })
	require.ErrorIs(t, conn.Err(), faultydevice.ErrBroken)
	require.ErrorIs(t, conn.Err(), rdma.ErrDevice)
	require.NoError(t, conn.Close())
	r.until("its place is free", func() bool { return conn.State() == rdma.Closed && len(ctx.List()) == 0 })
	dev.Heal()
	r.until("another can be made", func() bool {
		var err error
		conn, own, err = ctx.Export()
		return err == nil
	})
	require.NoError(t, conn.Connect(own))
	r.until("it is ready", func() bool { return conn.State() == rdma.Ready })
	assert.NotZero(t, conn.MTU())
}
