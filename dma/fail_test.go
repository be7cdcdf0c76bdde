package dma_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// faulty is a device of which parts fail on command.
type faulty struct {
	*soft.Device
	postSend, postRecv, modify, poll, create error
	cq                                       verbs.CQ
	events                                   func(verbs.Event)
	mrs                                      []verbs.MR
	beforeSend                               func()
	late                                     verbs.WCOpcode // these come when holds is false
	holds                                    bool
	held                                     []verbs.WC
}

type faultyPD struct {
	verbs.PD
	dev *faulty
}

type faultyQP struct {
	verbs.QP
	dev *faulty
}

type faultyCQ struct {
	verbs.CQ
	dev *faulty
}

func (d *faulty) DefaultPD() verbs.PD { return faultyPD{d.Device.DefaultPD(), d} }

func (d *faulty) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(init)
	d.cq = cq
	return faultyCQ{cq, d}, err
}

func (d *faulty) SubscribeEvents(f func(verbs.Event)) func() {
	d.events = f
	return d.Device.SubscribeEvents(f)
}

func (p faultyPD) Device() verbs.Device { return p.dev }

func (p faultyPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	if p.dev.create != nil {
		return nil, p.dev.create
	}
	init.SendCQ, init.RecvCQ = p.dev.cq, p.dev.cq
	qp, err := p.PD.CreateQP(init)
	return faultyQP{qp, p.dev}, err
}

func (p faultyPD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegMR(mem, access)
	p.dev.mrs = append(p.dev.mrs, mr)
	return mr, err
}

func (q faultyQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.dev.beforeSend != nil {
		q.dev.beforeSend()
	}
	if q.dev.postSend != nil {
		n, _ := q.QP.PostSend(wrs[:len(wrs)/2])
		return n, q.dev.postSend
	}
	return q.QP.PostSend(wrs)
}

func (q faultyQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.dev.postRecv != nil {
		n, _ := q.QP.PostRecv(wrs[:len(wrs)/2])
		return n, q.dev.postRecv
	}
	return q.QP.PostRecv(wrs)
}

func (q faultyQP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.dev.modify != nil {
		return q.dev.modify
	}
	return q.QP.Modify(a, mask)
}

func (c faultyCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.dev.poll != nil {
		return 0, c.dev.poll
	}
	if !c.dev.holds {
		n := copy(wcs, c.dev.held)
		c.dev.held = c.dev.held[n:]
		if n > 0 {
			return n, nil
		}
		return c.CQ.Poll(wcs)
	}
	n, err := c.CQ.Poll(wcs)
	kept := 0
	for _, wc := range wcs[:n] {
		if wc.Opcode == c.dev.late {
			c.dev.held = append(c.dev.held, wc)
			continue
		}
		wcs[kept] = wc
		kept++
	}
	return kept, err
}

// A copy is complete when both of its sides are, in whichever order an adapter
// reports them.
func TestBothSidesComplete(t *testing.T) {
	for _, late := range []verbs.WCOpcode{verbs.WCSend, verbs.WCRecv} {
		t.Run(late.String(), func(t *testing.T) {
			dev := &faulty{Device: must(soft.Open(soft.Config{})), late: late, holds: true}
			engine, bufs := pe.New(pe.Config{}), must(bufinv.New(64))
			c := must(dma.New(dev, dma.Config{PD: dev.DefaultPD(), MaxSGE: 1, QueueSize: 4}))
			memory := must(mmap.New(dev, mmap.Config{Size: 4096, PD: dev.DefaultPD(), Permissions: mmap.LocalReadWrite}))
			r := &fixture{t: t, engine: engine, ctx: c}
			require.NoError(t, engine.Connect(c))
			var copies outcome
			pool := must(c.CopyPool(1, copies.ok, copies.bad))
			require.NoError(t, c.Start())
			task := must(pool.Alloc(bufs.Source(memory, 0, 64), bufinv.List(bufs.Target(memory, 100, 32), bufs.Target(memory, 200, 32))))
			require.NoError(t, task.Submit())
			want := 2
			if late == verbs.WCSend {
				want = 1 // of the two pieces, one asks for it
			}
			r.until("one side is complete", func() bool { return len(dev.held) == want })
			for range 10 {
				_, err := engine.Progress()
				require.NoError(t, err)
			}
			require.Zero(t, copies.count())
			dev.holds = false
			r.until("it is copied", func() bool { return copies.count() == 1 })
			require.Empty(t, copies.errs)
			copies.free(t)
			require.NoError(t, c.Stop())
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			for _, o := range []interface{ Close() error }{c, engine, bufs, memory, dev.Device} {
				require.NoError(t, o.Close())
			}
		})
	}
}

// TestDeviceFails breaks the device in one way after the other; each time the
// context comes to Idle with the reason, and can be started again.
func TestDeviceFails(t *testing.T) {
	errBroken := errors.New("broken")
	dev := &faulty{Device: must(soft.Open(soft.Config{}))}
	engine, bufs := pe.New(pe.Config{}), must(bufinv.New(64))
	c := must(dma.New(dev, dma.Config{PD: dev.DefaultPD()}))
	memory := must(mmap.New(dev, mmap.Config{Size: 1 << 20, PD: dev.DefaultPD(), Permissions: mmap.LocalReadWrite}))
	require.NoError(t, engine.Connect(c))
	r := &fixture{t: t, engine: engine, ctx: c, bufs: bufs, src: memory, dst: memory}
	var copies outcome
	pool := must(c.CopyPool(10, copies.ok, copies.bad))
	submit := func(flags pe.SubmitFlags) {
		for i := range 10 {
			task := must(pool.Alloc(bufs.Source(memory, 0, 4096), bufs.Target(memory, 8192*(i+1), 4096)))
			require.NoError(t, task.SubmitWith(flags))
		}
	}
	for _, f := range []struct {
		name  string
		fail  func()
		is    error
		flags pe.SubmitFlags
	}{
		{"send", func() { dev.postSend = errBroken }, errBroken, pe.Aggregate},
		{"send, one at a time", func() { dev.postSend = errBroken }, errBroken, 0},
		{"receive", func() { dev.postRecv = errBroken }, errBroken, pe.Aggregate},
		{"poll", func() { dev.poll = errBroken }, errBroken, pe.Aggregate},
		{"poll and modify", func() { dev.poll, dev.modify = errBroken, errBroken }, errBroken, 0},
		{"device", func() { dev.events(verbs.Event{Type: verbs.EventDeviceFatal}) }, dma.ErrDevice, pe.Aggregate},
		{"completion queue", func() { dev.events(verbs.Event{Type: verbs.EventCQError, CQ: dev.cq}) }, nil, pe.Aggregate},
	} {
		t.Run(f.name, func(t *testing.T) {
			require.NoError(t, c.Start())
			if f.is == nil {
				submit(0) // that queue is another device's
				f.fail()
				r.until("all come back", func() bool { return copies.count() == 10 })
				require.Empty(t, copies.errs)
				copies.free(t)
				require.NoError(t, c.Stop())
				r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
				return
			}
			f.fail()
			failed := 0
			for i := range 10 {
				task, err := pool.Alloc(bufs.Source(memory, 0, 4096), bufs.Target(memory, 8192*(i+1), 4096))
				if err == nil {
					err = task.SubmitWith(f.flags)
					if err != nil {
						require.NoError(t, task.Free())
					}
				}
				if err != nil {
					require.ErrorIs(t, err, pe.ErrBadState, "it may have failed with the first")
					failed++
				}
			}
			r.until("all come back", func() bool { return copies.count()+failed == 10 })
			if f.name != "device" { // which reports it, and works on
				assert.NotEmpty(t, copies.failed)
			}
			for _, err := range copies.errs {
				require.ErrorIs(t, err, dma.ErrFlushed)
			}
			require.ErrorIs(t, c.Err(), f.is)
			require.ErrorIs(t, c.Err(), dma.ErrDevice)
			copies.free(t)
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			dev.postSend, dev.postRecv, dev.poll, dev.modify = nil, nil, nil, nil
			require.NoError(t, c.Start(), "it can be started again")
			submit(pe.Aggregate)
			r.until("all are copied", func() bool { return len(copies.done) == 10 })
			copies.free(t)
			require.NoError(t, c.Stop())
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			require.NoError(t, c.Err())
		})
	}
	t.Run("start", func(t *testing.T) {
		dev.create = errBroken
		require.ErrorIs(t, c.Start(), errBroken)
		dev.create, dev.modify = nil, errBroken
		require.ErrorIs(t, c.Start(), errBroken)
		dev.modify = nil
		require.Equal(t, pe.Idle, c.State())
	})
	for _, o := range []interface{ Close() error }{c, engine, bufs, memory, dev.Device} {
		require.NoError(t, o.Close())
	}
}

// TestTaskFails deregisters memory that is being copied, past the memory map, which
// would not allow it: that copy says so, those behind it are flushed, the context
// ends.
func TestTaskFails(t *testing.T) {
	for _, side := range []string{"source", "destination"} {
		t.Run(side, func(t *testing.T) {
			dev := &faulty{Device: must(soft.Open(soft.Config{}))}
			engine, bufs := pe.New(pe.Config{}), must(bufinv.New(64))
			c := must(dma.New(dev, dma.Config{Name: "copier", PD: dev.DefaultPD()}))
			good := must(mmap.New(dev, mmap.Config{Size: 4096, PD: dev.DefaultPD(), Permissions: mmap.LocalReadWrite}))
			bad := must(mmap.New(dev, mmap.Config{Size: 4096, PD: dev.DefaultPD(), Permissions: mmap.LocalReadWrite}))
			r := &fixture{t: t, engine: engine, ctx: c}
			require.NoError(t, engine.Connect(c))
			var order []string
			report := func(task *dma.CopyTask, end string) {
				order = append(order, task.UserData().(string)+" "+end)
				require.NoError(t, task.Free())
			}
			pool := must(c.CopyPool(4,
				func(task *dma.CopyTask) { report(task, "copied") },
				func(task *dma.CopyTask, err error) {
					var e *dma.TaskError
					require.ErrorAs(t, err, &e)
					require.Same(t, c, e.Context)
					require.ErrorContains(t, err, `copy of context "copier"`)
					require.ErrorIs(t, err, dma.ErrProtection, "of a task that was flushed it is the cause")
					if !errors.Is(err, dma.ErrFlushed) {
						require.Equal(t, verbs.StatusLocalProtectionError, e.Status)
						report(task, "refused")
						return
					}
					require.Equal(t, verbs.StatusFlushed, e.Status)
					report(task, "flushed")
				}))
			require.NoError(t, c.Start())
			for i, name := range []string{"first", "second", "third", "fourth"} {
				from, to := good, good
				if i == 1 && side == "source" {
					from = bad
				} else if i == 1 {
					to = bad
				}
				task := must(pool.Alloc(bufs.Source(from, 0, 64), bufs.Target(to, 128*(i+1), 64)))
				task.SetUserData(name)
				require.NoError(t, task.SubmitWith(pe.Aggregate))
			}
			dev.beforeSend = func() { require.NoError(t, dev.mrs[1].Close()) }
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			assert.Equal(t, []string{"first copied", "second refused", "third flushed", "fourth flushed"}, order)
			require.ErrorIs(t, c.Err(), dma.ErrProtection)
			for _, o := range []interface{ Close() error }{c, engine, bufs, good, bad, dev.Device} {
				require.NoError(t, o.Close())
			}
		})
	}
}
