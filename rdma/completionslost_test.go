package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// lossyCQDevice is a device whose completion queue can lose all that comes.
type lossyCQDevice struct {
	verbs.Device
	cq   verbs.CQ
	lost bool
}

type lossyCQPD struct {
	verbs.PD
	dev *lossyCQDevice
}

type lossyCQ struct {
	verbs.CQ
	dev *lossyCQDevice
}

func (d *lossyCQDevice) DefaultPD() verbs.PD { return lossyCQPD{d.Device.DefaultPD(), d} }

func (d *lossyCQDevice) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(init)
	d.cq = cq
	return lossyCQ{cq, d}, err
}

func (p lossyCQPD) Device() verbs.Device { return p.dev }

func (p lossyCQPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	init.SendCQ, init.RecvCQ = p.dev.cq, p.dev.cq
	return p.PD.CreateQP(init)
}

func (c lossyCQ) Poll(wcs []verbs.WC) (int, error) {
	n, err := c.CQ.Poll(wcs)
	if c.dev.lost {
		n = 0
	}
	return n, err
}

// An adapter reports a completion queue that has failed only as an event, and gives
// no completion any more: every task comes back nevertheless, and the context ends.
func TestCompletionsLost(t *testing.T) {
	dev := &lossyCQDevice{Device: must(soft.Open(soft.Config{}))}
	engine := pe.New(pe.Config{})
	c, err := New(dev, Config{Engine: engine, PD: dev.DefaultPD()})
	require.NoError(t, err)
	flushed := 0
	pool, err := c.Pool(4, func(task *Task) { require.NoError(t, task.Free()) }, func(task *Task, err error) {
		flushed++
		require.ErrorIs(t, err, ErrFlushed)
		require.NoError(t, task.Free())
	})
	require.NoError(t, err)
	require.NoError(t, c.Start())
	conn, desc, err := c.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(desc))
	for c.State() != pe.Running {
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	dev.lost = true
	for range 4 {
		task, err := pool.Write(conn, nil, nil)
		require.NoError(t, err)
		require.NoError(t, task.Submit())
	}
	c.eventCame(verbs.Event{Type: verbs.EventCQError, CQ: c.lanes.cq})
	for passes := 0; c.State() != pe.Idle; passes++ {
		require.Less(t, passes, 100_000, "the context is still %v", c.State())
		_, err := engine.Progress()
		require.NoError(t, err)
	}
	require.Equal(t, 4, flushed)
	require.ErrorIs(t, c.Err(), ErrDevice)
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Device.Close())
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}
