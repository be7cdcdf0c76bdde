package rdma_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// windowMemory is memory that only windows open.
const windowMemory = mmap.LocalReadWrite | mmap.BindWindows

// windowRig is a rig whose side b lends to side a.
type windowRig struct {
	*rig
	windows *rdma.WindowPool
	writes  *rdma.Pool
	reads   *rdma.Pool
	sends   *rdma.Pool
	recvs   *rdma.ReceivePool
	wrote   outcome[*rdma.Task]
	read    outcome[*rdma.Task]
	sent    outcome[*rdma.Task]
	arrived outcome[*rdma.ReceiveTask]
	mem     *mmap.Map // of side b
	window  *rdma.Window
}

func newWindowRig(t *testing.T, onA, onB verbs.Device) *windowRig {
	t.Helper()
	l := &windowRig{rig: newRigOn(t, onA, onB, rdma.Config{}, rdma.Config{})}
	l.windows = must(l.b.ctx.WindowPool(2))
	l.writes = must(l.a.ctx.Pool(8, l.wrote.ok, l.wrote.bad))
	l.reads = must(l.a.ctx.Pool(1, l.read.ok, l.read.bad))
	l.sends = must(l.a.ctx.Pool(1, l.sent.ok, l.sent.bad))
	l.recvs = must(l.b.ctx.ReceivePool(1, l.arrived.ok, l.arrived.bad))
	l.mem = must(mmap.Alloc(onB, 64<<10, windowMemory))
	t.Cleanup(func() { require.NoError(t, l.mem.Close()) })
	l.connect(1)
	l.window = must(l.windows.Alloc(l.b.conns[0]))
	return l
}

// wait drives the engine until the function that begin was given has been called.
func (l *windowRig) wait(begin func(done func(error)) error) error {
	l.t.Helper()
	var result error
	ended := false
	require.NoError(l.t, begin(func(err error) { ended, result = true, err }))
	l.until("the window's request has ended", func() bool { return ended })
	return result
}

func (l *windowRig) bind(off, n int, perm mmap.Permission) *mmap.Map {
	l.t.Helper()
	require.NoError(l.t, l.wait(func(done func(error)) error { return l.window.Bind(l.mem, off, n, perm, done) }))
	return l.imports()
}

func (l *windowRig) imports() *mmap.Map {
	l.t.Helper()
	m, err := mmap.Import(l.a.dev, must(l.window.Export()))
	require.NoError(l.t, err)
	l.t.Cleanup(func() { require.NoError(l.t, m.Close()) })
	return m
}

// write writes n bytes to the start of what was lent.
func (l *windowRig) write(to *mmap.Map, n int) error {
	l.t.Helper()
	task, err := l.writes.Write(l.a.conns[0], l.a.bufs.Source(l.a.mem, 0, n), l.a.bufs.Target(to, 0, n))
	require.NoError(l.t, err)
	before := l.wrote.count()
	require.NoError(l.t, task.Submit())
	l.until("the write has ended", func() bool { return l.wrote.count() > before })
	require.NoError(l.t, task.Free())
	if len(l.wrote.errs) > 0 {
		return l.wrote.errs[len(l.wrote.errs)-1]
	}
	return nil
}

func TestWindow(t *testing.T) { testWindow(t, openSoft(t), openSoft(t)) }

func testWindow(t *testing.T, onA, onB verbs.Device) {
	l := newWindowRig(t, onA, onB)
	fill(l.a.mem.Bytes(), 3)
	for round := range 3 {
		remote := l.bind(4096, 8192, mmap.RemoteWrite|mmap.RemoteRead)
		assert.True(t, l.window.Bound())
		assert.Equal(t, l.mem.Addr()+4096, remote.Addr())
		assert.Equal(t, 8192, remote.Len())
		assert.Equal(t, mmap.RemoteWrite|mmap.RemoteRead, remote.Permissions())
		err := l.mem.Close()
		require.ErrorIs(t, err, mmap.ErrInUse)
		require.ErrorContains(t, err, ": 1 memory window is bound to it;")
		clear(l.mem.Bytes())
		require.NoError(t, l.write(remote, 8192), "round %d", round)
		assert.True(t, bytes.Equal(l.a.mem.Bytes()[:8192], l.mem.Bytes()[4096:][:8192]))
		require.NoError(t, l.wait(l.window.Invalidate))
		assert.False(t, l.window.Bound())
	}
	remote := l.bind(0, 4096, mmap.RemoteWrite)
	require.NoError(t, l.window.Free())
	assert.False(t, l.window.Bound())
	clear(l.mem.Bytes())
	require.ErrorIs(t, l.write(remote, 4096), rdma.ErrRemoteAccess)
	assert.Equal(t, make([]byte, l.mem.Len()), l.mem.Bytes())
	assert.NotEqual(t, rdma.Ready, l.a.conns[0].State())
}

// TestWindowGivenBack has the peer give the window back: its reads before that are done.
func TestWindowGivenBack(t *testing.T) { testWindowGivenBack(t, openSoft(t), openSoft(t), true) }

// testWindowGivenBack is told whether a receive on side b names the window.
func testWindowGivenBack(t *testing.T, onA, onB verbs.Device, named bool) {
	l := newWindowRig(t, onA, onB)
	fill(l.mem.Bytes(), 9)
	recv := must(l.recvs.Alloc(l.b.bufs.Target(l.b.mem, 0, 64)))
	for round := range 3 {
		remote := l.bind(100, 32<<10, mmap.RemoteRead)
		require.NoError(t, recv.Submit())
		read := must(l.reads.Read(l.a.conns[0], l.a.bufs.Source(remote, 0, 32<<10), l.a.bufs.Target(l.a.mem, 0, 32<<10)))
		send := must(l.sends.Send(l.a.conns[0], l.a.bufs.Source(l.a.mem, 0, 4)))
		require.NoError(t, send.SetInvalidate(remote))
		require.NoError(t, read.Submit())
		require.NoError(t, send.Submit())
		l.until("the message has come", func() bool { return l.arrived.count() > round && l.sent.count() > round })
		require.Empty(t, l.read.errs)
		require.Empty(t, l.sent.errs)
		if named {
			assert.Same(t, l.window, recv.Invalidated())
			assert.False(t, l.window.Bound())
		} else { // the program knows by the message
			require.NoError(t, l.window.Free())
			l.window = must(l.windows.Alloc(l.b.conns[0]))
		}
		assert.True(t, bytes.Equal(l.a.mem.Bytes()[:32<<10], l.mem.Bytes()[100:][:32<<10]))
		require.NoError(t, read.Free())
		require.NoError(t, send.Free())
	}
	// A message without: the task of the pool has forgotten.
	require.NoError(t, recv.Submit())
	send := must(l.sends.Send(l.a.conns[0], nil))
	require.NoError(t, send.Submit())
	l.until("the message has come", func() bool { return l.arrived.count() > 3 && l.sent.count() > 3 })
	assert.Nil(t, recv.Invalidated())
	require.Empty(t, l.sent.errs)
	require.NoError(t, send.Free())
	require.NoError(t, recv.Free())
	require.NoError(t, l.window.Free())
}

// What is submitted behind a bind finds it done, and the window takes its turn among tasks.
func TestWindowInOrder(t *testing.T) {
	l := newWindowRig(t, openSoft(t), openSoft(t))
	calls := 0
	require.NoError(t, l.window.Bind(l.mem, 0, 64, mmap.RemoteWrite, func(err error) {
		require.NoError(t, err)
		calls++
		// In the callback, the next request can be made.
		require.NoError(t, l.window.Invalidate(func(err error) {
			require.NoError(t, err)
			calls++
		}))
	}))
	require.ErrorIs(t, l.window.Invalidate(func(error) {}), pe.ErrInUse)
	require.ErrorIs(t, l.window.Free(), pe.ErrInUse)
	l.imports() // before the bind is done
	l.until("both are done", func() bool { return calls == 2 })
	require.NoError(t, l.window.Free())
	require.Error(t, l.window.Free())
}

// The connection's end takes back what was lent.
func TestWindowOfAConnectionThatEnds(t *testing.T) {
	l := newWindowRig(t, openSoft(t), openSoft(t))
	l.bind(0, 64, mmap.RemoteWrite)
	require.NoError(t, l.b.conns[0].Close())
	l.until("the connection is closed", func() bool { return len(l.b.reported) == 2 })
	assert.False(t, l.window.Bound())
	require.NoError(t, l.mem.Close())
	require.NoError(t, l.window.Free())
}

// A bind that waits behind an unacknowledged write is flushed when the connection ends.
func TestWindowFlushed(t *testing.T) { sim.Check(t, 2, testWindowFlushed) }

func testWindowFlushed(s *sim.Sim) {
	t := testOf(s)
	l := newWindowRig(t, s.Host("a").Device(), s.Host("b").Device())
	writes := anyPool(l.b.ctx)
	s.Cut(s.Host("a"), s.Host("b"))
	write := must(writes.Write(l.b.conns[0], l.b.bufs.Source(l.b.mem, 0, 8), l.b.bufs.Target(l.b.peer, 0, 8)))
	var failed error
	require.NoError(t, pe.SubmitOrFree(write, nil, func(t *rdma.Task, err error) { failed = errors.Join(err, t.Free()) }))
	err := l.wait(func(done func(error)) error {
		require.NoError(t, l.window.Bind(l.mem, 0, 64, mmap.RemoteRead, done))
		return l.b.conns[0].Close()
	})
	require.ErrorIs(t, err, rdma.ErrFlushed)
	require.ErrorContains(t, err, "bind memory window on connection")
	l.until("the connection is closed", func() bool { return !l.window.Bound() })
	require.ErrorIs(t, failed, rdma.ErrFlushed)
	require.NoError(t, l.mem.Close())
	require.NoError(t, l.window.Free())
}

func TestWindowMisuse(t *testing.T) {
	l := newWindowRig(t, openSoft(t), openSoft(t))
	none := func(error) {}
	w := l.window
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"no map":             {w.Bind(nil, 0, 1, mmap.RemoteRead, none), rdma.ErrInvalid},
		"no function":        {w.Bind(l.mem, 0, 1, mmap.RemoteRead, nil), rdma.ErrInvalid},
		"beyond the map":     {w.Bind(l.mem, 0, l.mem.Len()+1, mmap.RemoteRead, none), mmap.ErrRange},
		"before the map":     {w.Bind(l.mem, -1, 1, mmap.RemoteRead, none), mmap.ErrRange},
		"no bytes":           {w.Bind(l.mem, 0, 0, mmap.RemoteRead, none), mmap.ErrRange},
		"no permissions":     {w.Bind(l.mem, 0, 1, 0, none), mmap.ErrPermission},
		"local permissions":  {w.Bind(l.mem, 0, 1, mmap.LocalReadWrite, none), mmap.ErrPermission},
		"not lendable":       {w.Bind(l.b.mem, 0, 1, mmap.RemoteRead, none), mmap.ErrPermission},
		"memory of the peer": {w.Bind(l.b.peer, 0, 1, mmap.RemoteRead, none), mmap.ErrRemote},
		"bound to nothing":   {w.Invalidate(none), rdma.ErrInvalid},
	} {
		require.ErrorIs(t, c.err, c.want, name)
	}
	_, err := w.Export()
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = l.windows.Alloc(l.a.conns[0])
	require.ErrorIs(t, err, rdma.ErrInvalid, "a connection of another context")
	assert.Equal(t, 1, l.windows.Available())
	assert.Equal(t, 2, l.windows.Cap())
	_, err = l.b.ctx.WindowPool(1)
	require.ErrorIs(t, err, pe.ErrBadState)
	readOnly := must(mmap.Alloc(l.b.dev, 64, mmap.BindWindows))
	require.ErrorIs(t, w.Bind(readOnly, 0, 1, mmap.RemoteWrite, none), mmap.ErrPermission)
	require.NoError(t, readOnly.Close())
	require.ErrorIs(t, w.Bind(readOnly, 0, 1, mmap.RemoteRead, none), mmap.ErrClosed)

	send := must(l.sends.Send(l.a.conns[0], nil))
	require.ErrorIs(t, send.SetInvalidate(l.a.mem), rdma.ErrInvalid)
	require.NoError(t, send.SetInvalidate(l.a.peer))
	require.NoError(t, send.SetInvalidate(nil))
	require.NoError(t, send.Free())
	require.NoError(t, w.Free())
	l.b.conns[0].Close()
	_, err = l.windows.Alloc(l.b.conns[0])
	require.ErrorIs(t, err, rdma.ErrNotReady)
}

// windowless is a device that has no windows of type 2.
type windowless struct{ verbs.Device }

func (d windowless) Query() (verbs.DeviceAttr, error) {
	a, err := d.Device.Query()
	a.MWTypes = verbs.MWTypeSet(verbs.MWType1)
	return a, err
}

func TestNoWindows(t *testing.T) {
	ctx, err := rdma.New(windowless{openSoft(t)}, rdma.Config{Engine: pe.New(pe.Config{})})
	require.NoError(t, err)
	_, err = ctx.WindowPool(1)
	require.ErrorIs(t, err, rdma.ErrNotSupported)
	require.NoError(t, ctx.Close())
}

// To bind and invalidate again and again allocates nothing.
func TestWindowsAllocateNothing(t *testing.T) {
	l := newWindowRig(t, openSoft(t), openSoft(t))
	l.settle()
	var failure error
	ended := false
	done := func(err error) { failure, ended = err, true }
	allocs := testing.AllocsPerRun(2000, func() {
		for _, begin := range []bool{true, false} {
			ended = false
			if begin {
				failure = l.window.Bind(l.mem, 0, 64, mmap.RemoteWrite, done)
			} else {
				failure = l.window.Invalidate(done)
			}
			for !ended && failure == nil {
				_, failure = l.engine.Progress()
			}
		}
	})
	require.NoError(t, failure)
	assert.Zero(t, allocs)
	require.NoError(t, l.window.Free())
}
