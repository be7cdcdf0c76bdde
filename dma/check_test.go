package dma_test

import (
	"os"
	"runtime"
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

// sharing takes a dma-buf, and does as if it were registered.
type sharing struct{ verbs.PD }

func (s sharing) RegDMABufMR(buf verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	return s.RegMR(make([]byte, buf.Length), access)
}

// Offsets in one dma-buf are not those in another.
func TestOverlapOfDMABufs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("dma-bufs are Linux's")
	}
	dev := must(soft.Open(soft.Config{}))
	pd := sharing{must(dev.AllocPD())}
	r := newFixtureOn(t, dev, 4096, dma.Config{PD: pd})
	var copies outcome
	pool := must(r.ctx.CopyPool(1, copies.ok, copies.bad))
	r.start()
	file := must(os.CreateTemp(t.TempDir(), ""))
	defer file.Close()
	open := func() *mmap.Map {
		return must(mmap.New(dev, mmap.Config{
			DMABuf: &mmap.DMABuf{FD: int(file.Fd()), Length: 4096}, PD: pd, Permissions: mmap.LocalReadWrite,
		}))
	}
	a, b := open(), open()
	source := func(off, n int) *bufinv.Buf { return r.bufs.Source(a, off, n) }
	target := func(m *mmap.Map, off, n int) *bufinv.Buf { return r.bufs.Target(m, off, n) }
	for _, ok := range []*bufinv.Buf{target(b, 0, 64), bufinv.List(target(b, 0, 32), target(a, 64, 32)), target(r.dst, 0, 64)} {
		require.NoError(t, must(pool.Alloc(source(0, 64), ok)).Free())
	}
	for _, bad := range []*bufinv.Buf{target(a, 63, 64), bufinv.List(target(b, 0, 32), target(a, 63, 32)), bufinv.List(target(b, 0, 40), target(b, 39, 40))} {
		_, err := pool.Alloc(source(0, 64), bad)
		require.ErrorIs(t, err, dma.ErrOverlap)
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

func TestOverlap(t *testing.T) {
	r := newFixture(t, 4096, dma.Config{})
	var copies outcome
	pool := must(r.ctx.CopyPool(1, copies.ok, copies.bad))
	r.start()
	source := func(off, n int) *bufinv.Buf { return r.bufs.Source(r.dst, off, n) }
	target := func(off, n int) *bufinv.Buf { return r.bufs.Target(r.dst, off, n) }
	for _, c := range []struct {
		name     string
		src, dst *bufinv.Buf
		says     string // empty: it is allowed
	}{
		{"the same", source(0, 64), target(0, 64), "element 0 of the source"},
		{"by one byte below", source(63, 64), target(0, 64), "element 0 of the destination"},
		{"by one byte above", source(0, 64), target(63, 64), "element 0 of the source"},
		{"inside", source(0, 64), bufinv.List(target(1000, 60), target(10, 4)), "element 1 of the destination"},
		{"around", bufinv.List(source(500, 40), source(100, 4)), target(90, 64), "element 1 of the source"},
		{"behind a long one", bufinv.List(source(0, 1000), source(10, 5)), bufinv.List(target(2000, 1000), target(900, 64)), "element 0 of the source"},
		{"of the destination", source(0, 64), bufinv.List(target(1000, 40), target(1030, 40)), "element 1 of the destination (24 bytes"},
		{"next to each other", source(64, 64), bufinv.List(target(0, 64)), ""},
		{"of the source", bufinv.List(source(0, 64), source(0, 64)), target(64, 128), ""},
		{"of room that is not needed", source(64, 64), target(0, 128), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			task, err := pool.Alloc(c.src, c.dst)
			if c.says == "" {
				require.NoError(t, err)
				require.NoError(t, task.Free())
				return
			}
			require.ErrorIs(t, err, dma.ErrOverlap)
			require.ErrorContains(t, err, c.says)
			assert.Equal(t, 1, pool.Available())
		})
	}
	assert.Equal(t, r.bufs.Total(), r.bufs.Available(), "they were handed over all the same")

	// A buffer can be copied into its own room.
	b := r.bufs.Source(r.dst, 0, 64)
	require.NoError(t, b.SetData(0, 32))
	require.NoError(t, b.Ref())
	fill(r.dst.Bytes()[:32], 3)
	task, err := pool.Alloc(b, b)
	require.NoError(t, err)
	require.ErrorIs(t, task.Submit(), dma.ErrOverlap, "it would be emptied first")
	require.Len(t, b.Bytes(), 32, "a submission that fails leaves the data alone")
	require.NoError(t, task.SetAppend(true))
	require.NoError(t, task.Submit())
	r.until("it is copied", func() bool { return copies.count() == 1 })
	require.Empty(t, copies.errs)
	assert.Equal(t, r.dst.Bytes()[:32], r.dst.Bytes()[32:64])
	require.NoError(t, task.Free())
}

func TestBadBuffers(t *testing.T) {
	r := newFixture(t, 4096, dma.Config{})
	var copies outcome
	pool := must(r.ctx.CopyPool(1, copies.ok, copies.bad))
	r.start()
	other := must(soft.Open(soft.Config{}))
	foreign := must(mmap.Alloc(other, 4096, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite))
	imported := must(mmap.Import(r.dev, must(foreign.Export(other))))
	pd := must(r.dev.AllocPD())
	elsewhere := must(mmap.New(r.dev, mmap.Config{Size: 4096, PD: pd, Permissions: mmap.LocalReadWrite}))
	source := func(m *mmap.Map, n int) *bufinv.Buf { return r.bufs.Source(m, 0, n) }
	target := func(m *mmap.Map, n int) *bufinv.Buf { return r.bufs.Target(m, 0, n) }
	empty := source(r.src, 64)
	require.NoError(t, empty.ResetData())
	for _, c := range []struct {
		name     string
		src, dst *bufinv.Buf
		is       error
		says     string
	}{
		{"no source", nil, target(r.dst, 64), dma.ErrInvalid, "a source"},
		{"no destination", source(r.src, 64), nil, dma.ErrInvalid, "a destination"},
		{"source without data", empty, target(r.dst, 64), dma.ErrNoData, "Source"},
		{"destination too small", source(r.src, 65), target(r.dst, 64), dma.ErrRange, "65 bytes, the destination has room for 64"},
		{"read-only destination", source(r.dst, 64), target(r.src, 64), mmap.ErrPermission, "LocalReadWrite"},
		{"source of a peer", source(imported, 64), target(r.dst, 64), dma.ErrInvalid, "package rdma"},
		{"destination of a peer", source(r.src, 64), bufinv.List(target(r.dst, 10), target(imported, 64)), dma.ErrInvalid, "package rdma"},
		{"source of another device", source(foreign, 64), target(r.dst, 64), mmap.ErrNotRegistered, "AddDevice"},
		{"destination of another device", source(r.src, 64), target(foreign, 64), mmap.ErrNotRegistered, "AddDevice"},
		{"other protection domain", source(elsewhere, 64), target(r.dst, 64), mmap.ErrNotRegistered, "AddPD"},
		{"source that could not be made", r.bufs.Source(r.src, 4000, 97), target(r.dst, 97), bufinv.ErrRange, "the source"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pool.Alloc(c.src, c.dst)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
			assert.Equal(t, 1, pool.Available())
		})
	}
	assert.Equal(t, r.bufs.Total(), r.bufs.Available(), "they were handed over all the same")

	// Submit finds what has changed since, and leaves the task to the caller.
	task := must(pool.Alloc(source(r.src, 64), target(r.dst, 64)))
	require.NoError(t, task.SetSource(source(foreign, 64)))
	require.ErrorIs(t, task.Submit(), mmap.ErrNotRegistered)
	require.NoError(t, task.SetSource(source(r.src, 64)))
	require.NoError(t, task.Destination().SetData(1, 0))
	require.ErrorIs(t, task.TrySubmit(), dma.ErrRange)
	require.NoError(t, task.Destination().SetData(0, 1))
	require.NoError(t, task.SetAppend(true))
	require.ErrorContains(t, task.TrySubmit(), "room for 63; call SetAppend(false)")
	require.Equal(t, 1, task.Destination().DataLen())
	require.NoError(t, task.SetDestination(target(r.dst, 128)))
	assert.False(t, task.InFlight())
	require.NoError(t, task.Submit())
	assert.True(t, task.InFlight())
	require.ErrorIs(t, task.Submit(), pe.ErrInUse)
	require.ErrorIs(t, task.SetSource(source(r.src, 1)), pe.ErrInUse)
	require.ErrorIs(t, task.Free(), pe.ErrInUse)
	r.until("it is copied", func() bool { return copies.count() == 1 })
	require.Empty(t, copies.errs)
	_, err := pool.Alloc(source(r.src, 1), target(r.dst, 1))
	require.ErrorIs(t, err, pe.ErrExhausted)
	require.NoError(t, task.Free())
	require.ErrorIs(t, task.Free(), pe.ErrFreed)
	require.ErrorIs(t, task.Submit(), pe.ErrFreed)
	require.ErrorIs(t, task.SetSource(source(r.src, 1)), pe.ErrFreed)
	require.ErrorIs(t, task.SetDestination(target(r.dst, 1)), pe.ErrFreed)
	assert.Equal(t, r.bufs.Total(), r.bufs.Available())
	for _, c := range []interface{ Close() error }{imported, elsewhere, pd, foreign, other} {
		require.NoError(t, c.Close())
	}
}

// A map of several devices is copied by contexts on any of them.
func TestSeveralDevices(t *testing.T) {
	a, b := newFixture(t, 4096, dma.Config{}), newFixture(t, 4096, dma.Config{})
	shared := must(mmap.Alloc(a.dev, 4096, mmap.LocalReadWrite))
	require.NoError(t, shared.AddDevice(b.dev))
	fill(a.src.Bytes(), 5)
	var first, second outcome
	in, out := must(a.ctx.CopyPool(1, first.ok, first.bad)), must(b.ctx.CopyPool(1, second.ok, second.bad))
	a.start()
	b.start()
	one := must(in.Alloc(a.bufs.Source(a.src, 0, 4096), a.bufs.Target(shared, 0, 4096)))
	require.NoError(t, one.Submit())
	a.until("it is copied", func() bool { return first.count() == 1 })
	two := must(out.Alloc(b.bufs.Source(shared, 0, 4096), b.bufs.Target(b.dst, 0, 4096)))
	require.NoError(t, two.Submit())
	b.until("it is copied", func() bool { return second.count() == 1 })
	require.Empty(t, append(first.errs, second.errs...))
	same(t, a.src.Bytes(), b.dst.Bytes())
	require.NoError(t, one.Free())
	require.NoError(t, two.Free())
	require.NoError(t, shared.Close())
}

func TestConfig(t *testing.T) {
	dev := must(soft.Open(soft.Config{}))
	other := must(soft.Open(soft.Config{}))
	for _, c := range []struct {
		name string
		cfg  dma.Config
		is   error
	}{
		{"domain of another device", dma.Config{PD: other.DefaultPD()}, dma.ErrInvalid},
		{"port", dma.Config{Port: 2}, dma.ErrRange},
		{"negative port", dma.Config{Port: -1}, dma.ErrRange},
		{"P_Key", dma.Config{PKeyIndex: 1 << 16}, dma.ErrRange},
		{"GID", dma.Config{GIDIndex: new(77)}, dma.ErrGID},
		{"queue", dma.Config{QueueSize: 1 << 20}, dma.ErrRange},
		{"lists", dma.Config{MaxSGE: 33}, dma.ErrRange},
		{"negative lists", dma.Config{MaxSGE: -1}, dma.ErrRange},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := dma.New(dev, c.cfg)
			require.ErrorIs(t, err, c.is)
		})
	}
	_, err := dma.New(nil, dma.Config{})
	require.ErrorIs(t, err, dma.ErrInvalid)
	_, err = dma.New(unreliable{dev}, dma.Config{})
	require.ErrorIs(t, err, dma.ErrNotSupported)

	c := must(dma.New(dev, dma.Config{}))
	_, err = c.CopyPool(1, nil, func(*dma.CopyTask, error) {})
	require.ErrorIs(t, err, dma.ErrInvalid)
	_, err = c.CopyPool(0, func(*dma.CopyTask) {}, func(*dma.CopyTask, error) {})
	require.ErrorIs(t, err, pe.ErrInvalid)
	pool, err := c.CopyPool(100, func(*dma.CopyTask) {}, func(*dma.CopyTask, error) {})
	require.NoError(t, err)
	cfg := c.Config()
	assert.Equal(t, "dma", cfg.Name)
	assert.Equal(t, []int{1, 0, 100, 4}, []int{cfg.Port, *cfg.GIDIndex, cfg.QueueSize, cfg.MaxSGE})
	assert.Equal(t, []int{100, 100}, []int{pool.Cap(), pool.Available()})
	assert.Equal(t, dev.DefaultPD(), c.PD())
	assert.Same(t, dev, c.Device())
	require.NoError(t, dev.Close())
	require.NoError(t, other.Close())
}

// unreliable is a device that has no reliable connections.
type unreliable struct{ verbs.Device }

func (d unreliable) Query() (verbs.DeviceAttr, error) {
	attr, err := d.Device.Query()
	attr.Transports = verbs.TransportSet(verbs.UD)
	return attr, err
}
