package rdma_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
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
	r := newRig(t, rdma.Config{SendQueueSize: 1, MaxConnections: 2, CloseTimeout: -1}, rdma.Config{MaxConnections: 2})
	back := 0
	bad := func() { back++; panic("mine") }
	writes := must(r.a.ctx.WritePool(8, done[*rdma.WriteTask](bad), failed[*rdma.WriteTask](bad)))
	recvs := must(r.a.ctx.ReceivePool(3, done[*rdma.ReceiveTask](bad), failed[*rdma.ReceiveTask](bad)))
	r.connect(2)
	var tasks []rdma.Task
	for i := range 8 {
		tasks = append(tasks, must(writes.Alloc(r.a.conns[i%2], nil, nil)))
	}
	for range 3 {
		tasks = append(tasks, must(recvs.Alloc(nil)))
	}
	_, err := rdma.SubmitAll(tasks, 0)
	require.NoError(t, err)
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
	require.NoError(t, rdma.FreeAll(tasks))
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

// refusingPD makes queue pairs that cannot be made ready to send while it refuses.
type refusingPD struct {
	verbs.PD
	refuse error
}

type refusingQP struct {
	verbs.QP
	pd *refusingPD
}

func (p *refusingPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(init)
	return &refusingQP{qp, p}, err
}

func (q *refusingQP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.pd.refuse != nil && a.State == verbs.QPReadyToSend {
		return q.pd.refuse
	}
	return q.QP.Modify(a, mask)
}

// A connection that could not be connected is as before, and can be connected.
func TestConnectAfterAFailure(t *testing.T) {
	dev := openSoft(t)
	pd := &refusingPD{PD: dev.DefaultPD(), refuse: errors.New("not now")}
	engine := pe.New(pe.Config{})
	defer func() { require.NoError(t, engine.Close()) }()
	ctx := must(rdma.New(dev, rdma.Config{PD: pd, Engine: engine}))
	defer func() { require.NoError(t, ctx.Close()) }()
	require.NoError(t, ctx.Start())
	conn, own := must2(ctx.Export())
	require.ErrorIs(t, conn.Connect(own), pd.refuse)
	assert.Equal(t, rdma.Exported, conn.State())
	assert.Zero(t, conn.PeerQPN())
	assert.Zero(t, conn.MTU())
	assert.Zero(t, conn.MaxReadAtomic())
	assert.False(t, conn.PeerAddr().IsValid())
	pd.refuse = nil
	require.NoError(t, conn.Connect(own))
	assert.Equal(t, rdma.Ready, conn.State())
	assert.NotZero(t, conn.MTU())
}
