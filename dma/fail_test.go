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
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// A copy is complete when both of its sides are, in whichever order an adapter
// reports them.
func TestBothSidesComplete(t *testing.T) {
	for _, late := range []verbs.WCOpcode{verbs.WCSend, verbs.WCRecv} {
		t.Run(late.String(), func(t *testing.T) {
			dev := must(faultydevice.Open(soft.Config{}))
			holds, held := true, []verbs.WC(nil)
			dev.Set(func(h *faultydevice.Hooks) {
				h.Poll = func(cq verbs.CQ, wcs []verbs.WC) (int, error) {
					if !holds && len(held) > 0 {
						n := copy(wcs, held)
						held = held[n:]
						return n, nil
					}
					n, err := cq.Poll(wcs)
					if !holds {
						return n, err
					}
					kept := 0
					for _, wc := range wcs[:n] {
						if wc.Opcode == late {
							held = append(held, wc)
							continue
						}
						wcs[kept] = wc
						kept++
					}
					return kept, err
				}
			})
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
				want = 1 // of the two segments, one asks for it
			}
			r.until("one side is complete", func() bool { return len(held) == want })
			for range 10 {
				_, err := engine.Progress()
				require.NoError(t, err)
			}
			require.Zero(t, copies.count())
			holds = false
			r.until("it is copied", func() bool { return copies.count() == 1 })
			require.Empty(t, copies.errs)
			copies.free(t)
			require.NoError(t, c.Stop())
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			for _, o := range []interface{ Close() error }{c, engine, bufs, memory, dev} {
				require.NoError(t, o.Close())
			}
		})
	}
}

// TestDeviceFails breaks the device in one way after the other; each time the
// context comes to Idle with the reason, and can be started again.
func TestDeviceFails(t *testing.T) {
	dev := must(faultydevice.Open(soft.Config{}))
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
			require.NoError(t, task.Submit(flags))
		}
	}
	failSend := func(h *faultydevice.Hooks) {
		h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
			n, _ := qp.PostSend(wrs[:len(wrs)/2])
			return n, faultydevice.ErrBroken
		}
	}
	failReceive := func(h *faultydevice.Hooks) {
		h.PostRecv = func(queue faultydevice.Receives, wrs []verbs.RecvWR) (int, error) {
			n, _ := queue.PostRecv(wrs[:len(wrs)/2])
			return n, faultydevice.ErrBroken
		}
	}
	failPoll := func(h *faultydevice.Hooks) {
		h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, faultydevice.ErrBroken }
	}
	for _, f := range []struct {
		name  string
		fail  func()
		is    error
		flags pe.SubmitFlags
	}{
		{"send", func() { dev.Set(failSend) }, faultydevice.ErrBroken, pe.Aggregate},
		{"send, one at a time", func() { dev.Set(failSend) }, faultydevice.ErrBroken, 0},
		{"receive", func() { dev.Set(failReceive) }, faultydevice.ErrBroken, pe.Aggregate},
		{"poll", func() { dev.Set(failPoll) }, faultydevice.ErrBroken, pe.Aggregate},
		{"poll and modify", func() { dev.Set(failPoll); dev.RefuseError(faultydevice.ErrBroken) }, faultydevice.ErrBroken, 0},
		{"device", func() { dev.Report(verbs.Event{Type: verbs.EventDeviceFatal}) }, dma.ErrDevice, pe.Aggregate},
		{"completion queue", func() { dev.Report(verbs.Event{Type: verbs.EventCQError}) }, nil, pe.Aggregate},
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
					err = task.Submit(f.flags)
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
			dev.Heal()
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
		dev.Set(func(h *faultydevice.Hooks) { h.CreateQP = func(*verbs.QPInit) error { return faultydevice.ErrBroken } })
		require.ErrorIs(t, c.Start(), faultydevice.ErrBroken)
		dev.Heal()
		dev.Set(func(h *faultydevice.Hooks) {
			h.Modify = func(verbs.QP, verbs.QPAttr, verbs.QPAttrMask) error { return faultydevice.ErrBroken }
		})
		require.ErrorIs(t, c.Start(), faultydevice.ErrBroken)
		dev.Heal()
		require.Equal(t, pe.Idle, c.State())
	})
	for _, o := range []interface{ Close() error }{c, engine, bufs, memory, dev} {
		require.NoError(t, o.Close())
	}
}

// TestTaskFails deregisters memory that is being copied, past the memory map, which
// would not allow it: that copy says so, those behind it are flushed, the context
// ends.
func TestTaskFails(t *testing.T) {
	for _, side := range []string{"source", "destination"} {
		t.Run(side, func(t *testing.T) {
			dev := must(faultydevice.Open(soft.Config{}))
			var regions []verbs.MR
			dev.Set(func(h *faultydevice.Hooks) { h.Registered = func(mr verbs.MR) { regions = append(regions, mr) } })
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
				require.NoError(t, task.Submit(pe.Aggregate))
			}
			dev.Set(func(h *faultydevice.Hooks) {
				h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
					require.NoError(t, regions[1].Close())
					return qp.PostSend(wrs)
				}
			})
			r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
			assert.Equal(t, []string{"first copied", "second refused", "third flushed", "fourth flushed"}, order)
			require.ErrorIs(t, c.Err(), dma.ErrProtection)
			for _, o := range []interface{ Close() error }{c, engine, bufs, good, bad, dev} {
				require.NoError(t, o.Close())
			}
		})
	}
}

// Flush starts the copies that wait, and does nothing without.
func TestFlush(t *testing.T) {
	dev := must(faultydevice.Open(soft.Config{}))
	r := newFixtureOn(t, dev, 64, dma.Config{})
	posts := 0
	dev.Set(func(h *faultydevice.Hooks) {
		h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
			posts++
			return qp.PostSend(wrs)
		}
	})
	done := 0
	pool := must(r.ctx.CopyPool(1, func(*dma.CopyTask) { done++ }, func(_ *dma.CopyTask, err error) { t.Error(err) }))
	r.ctx.Flush() // in Idle
	r.start()
	task := must(pool.Alloc(r.bufs.Source(r.src, 0, 64), r.bufs.Target(r.dst, 0, 64)))
	require.NoError(t, task.Submit(pe.Aggregate))
	assert.Zero(t, posts)
	r.ctx.Flush()
	assert.Equal(t, 1, posts)
	r.ctx.Flush()
	assert.Equal(t, 1, posts)
	r.until("it is copied", func() bool { return done == 1 })
	require.NoError(t, task.Free())
}
