package dma_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// fixture is a context on a device, with memory to copy from and to.
type fixture struct {
	t      testing.TB
	engine *pe.Engine
	dev    verbs.Device
	ctx    *dma.Context
	src    *mmap.Map // read only
	dst    *mmap.Map
	bufs   *bufinv.Inventory
	states []pe.State // entered, in order
}

func newFixture(t testing.TB, memory int, cfg dma.Config) *fixture {
	t.Helper()
	return newFixtureOn(t, must(soft.Open(soft.Config{})), memory, cfg)
}

// newFixtureOn makes all but a running context, on a device that the fixture closes.
func newFixtureOn(t testing.TB, dev verbs.Device, memory int, cfg dma.Config) *fixture {
	t.Helper()
	r := &fixture{t: t, dev: dev, engine: pe.New(pe.Config{}), bufs: must(bufinv.New(4096))}
	r.ctx = must(dma.New(dev, cfg))
	r.src = must(mmap.New(dev, mmap.Config{Size: memory, PD: cfg.PD}))
	r.dst = must(mmap.New(dev, mmap.Config{Size: memory, PD: cfg.PD, Permissions: mmap.LocalReadWrite}))
	require.NoError(t, r.engine.Connect(r.ctx))
	r.ctx.OnStateChange(func(_, next pe.State) { r.states = append(r.states, next) })
	t.Cleanup(func() {
		require.NoError(t, r.ctx.Stop())
		r.until("the context is Idle", func() bool { return r.ctx.State() == pe.Idle })
		require.NoError(t, r.ctx.Close())
		require.NoError(t, r.engine.Close())
		require.Equal(t, r.bufs.Total(), r.bufs.Available(), "buffers leaked")
		for _, c := range []interface{ Close() error }{r.bufs, r.src, r.dst} {
			require.NoError(t, c.Close())
		}
		if cfg.PD != nil {
			require.NoError(t, cfg.PD.Close())
		}
		require.NoError(t, dev.Close(), "something of the device leaked")
	})
	return r
}

// start starts the context, which runs at once.
func (r *fixture) start() {
	r.t.Helper()
	require.NoError(r.t, r.ctx.Start())
	require.Equal(r.t, pe.Running, r.ctx.State())
}

// until drives the engine until the condition holds.
func (r *fixture) until(what string, done func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for idle := 0; !done(); {
		n, err := r.engine.Progress()
		require.NoError(r.t, err)
		if idle++; n > 0 {
			idle = 0
		} else if idle > 1000 { // a long wait leaves the processor to others
			time.Sleep(100 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			require.FailNow(r.t, "never happened: "+what)
		}
	}
}

// outcome keeps how copies ended.
type outcome struct {
	done   []*dma.CopyTask
	failed []*dma.CopyTask
	errs   []error
	then   func(*dma.CopyTask) // runs in the callback
}

func (o *outcome) ok(t *dma.CopyTask) {
	o.done = append(o.done, t)
	if o.then != nil {
		o.then(t)
	}
}

func (o *outcome) bad(t *dma.CopyTask, err error) {
	o.failed = append(o.failed, t)
	o.errs = append(o.errs, err)
	if o.then != nil {
		o.then(t)
	}
}

func (o *outcome) count() int { return len(o.done) + len(o.failed) }

func (o *outcome) free(t testing.TB) {
	t.Helper()
	for _, task := range append(o.done, o.failed...) {
		require.NoError(t, task.Free())
	}
	o.done, o.failed, o.errs = nil, nil, nil
}

// fill puts a pattern into memory.
func fill(p []byte, seed byte) {
	for i := range p {
		p[i] = byte(i*7) + byte(i>>8) + byte(i>>16) + seed
	}
}

// must is for set-up that cannot fail.
func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// same compares bytes without printing megabytes of them.
func same(t testing.TB, want, got []byte) {
	t.Helper()
	require.Len(t, got, len(want))
	if bytes.Equal(want, got) {
		return
	}
	for i := range want {
		if want[i] != got[i] {
			require.Failf(t, "bytes differ", "the first at %d: %#x, not %#x", i, got[i], want[i])
		}
	}
}
