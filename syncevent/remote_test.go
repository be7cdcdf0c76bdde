package syncevent_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/test/blocked"
	"github.com/verbena-rdma/verbena/verbs"
)

// program is one of two programs, each with a device and an engine of its own.
type program struct {
	t      *testing.T
	dev    verbs.Device
	engine *pe.Engine
	ctx    *rdma.Connections
	conn   *rdma.Connection
	desc   []byte
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{t: t}
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	p.dev = dev
	p.engine = pe.New(pe.Config{})
	p.ctx, err = rdma.New(dev, rdma.Config{Permissions: mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic})
	require.NoError(t, err)
	require.NoError(t, p.engine.Connect(p.ctx))
	return p
}

// export starts the program's side of a connection.
func (p *program) export() {
	require.NoError(p.t, p.ctx.Start())
	var err error
	p.conn, p.desc, err = p.ctx.Export()
	require.NoError(p.t, err)
}

func (p *program) close() {
	require.NoError(p.t, p.ctx.Close())
	require.NoError(p.t, p.engine.Close())
	require.NoError(p.t, p.dev.Close())
}

// as makes a memory map of another's event, until package rdma has tasks for it.
func as(t *testing.T, dev verbs.Device, e *syncevent.Event) *mmap.Map {
	f := e.Friends(friend.Package{})
	m, err := mmap.FromKey(dev, f.Addr(), 8, f.RKey(), mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	require.NoError(t, err)
	return m
}

// A program sleeps on its event, its engine sleeps too, and the tasks of another
// program wake it.
func TestTasksOfAPeerWakeASleeper(t *testing.T) {
	owner, writer := newProgram(t), newProgram(t)
	e, err := syncevent.New(owner.dev, syncevent.Config{Publishers: syncevent.PublishLocal | syncevent.PublishRemote})
	require.NoError(t, err)
	desc, err := e.Export()
	require.NoError(t, err)
	remote, err := syncevent.Import(writer.dev, []byte(descriptor.Armor(desc)))
	require.NoError(t, err)
	target := as(t, writer.dev, remote)
	mem, err := mmap.Alloc(writer.dev, 4096, mmap.LocalReadWrite)
	require.NoError(t, err)
	bufs, err := bufinv.New(4)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	failed := func(err error) { assert.NoError(t, err); cancel() }
	// next runs f on the writer's engine once the owner has seen the last change.
	seenByOwner := make(chan uint64)
	next := func(f func(seen uint64)) {
		go func() {
			seen := <-seenByOwner
			assert.NoError(t, writer.engine.Do(func() { f(seen) }))
		}()
	}
	added := make(chan struct{})
	adds, err := writer.ctx.Pool(1, func(a *rdma.Task) {
		assert.Equal(t, uint64(0xd0ca), a.Original())
		assert.NoError(t, a.Free())
		close(added)
	}, func(_ *rdma.Task, err error) { failed(err) })
	require.NoError(t, err)
	writes, err := writer.ctx.Pool(1, func(w *rdma.Task) {
		assert.NoError(t, w.Free())
		next(func(seen uint64) {
			assert.Equal(t, uint64(0xd0ca), seen)
			a, err := adds.FetchAdd(writer.conn, bufs.Target(target, 0, 8), 1)
			if assert.NoError(t, err) {
				assert.NoError(t, a.Submit())
			}
		})
	}, func(_ *rdma.Task, err error) { failed(err) })
	require.NoError(t, err)
	writer.ctx.OnStateChange(func(_, state pe.State) {
		if state != pe.Running {
			return
		}
		binary.NativeEndian.PutUint64(mem.Bytes(), 0xd0ca)
		w, err := writes.Write(writer.conn, bufs.Source(mem, 0, 8), bufs.Target(target, 0, 8))
		if assert.NoError(t, err) {
			assert.NoError(t, w.Submit())
		}
	})

	owner.export()
	writer.export()
	require.NoError(t, owner.conn.Connect(writer.desc))
	require.NoError(t, writer.conn.Connect(owner.desc))
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, p := range []*program{owner, writer} {
		wg.Go(func() { assert.ErrorIs(t, p.engine.Run(running), context.Canceled) })
	}
	seen, err := e.Wait(ctx, syncevent.Equal(0xd0ca))
	require.NoError(t, err)
	woken := make(chan uint64)
	go func() {
		seen, err := e.Wait(ctx, syncevent.Greater(0xd0ca))
		assert.NoError(t, err)
		woken <- seen
	}()
	atDevice := "select"
	if runtime.GOOS == "linux" {
		atDevice = "IO wait"
	}
	blocked.Await(t, 2, atDevice, "pe.(*Engine).sleep")
	blocked.Await(t, 1, "select", "syncevent.(*Event).sleep")
	seenByOwner <- seen
	assert.Equal(t, uint64(0xd0cb), <-woken)
	select {
	case <-added: // it wakes the owner before the writer knows
	case <-ctx.Done():
	}
	stop()
	wg.Wait()

	require.NoError(t, remote.Close())
	require.NoError(t, e.Close())
	require.NoError(t, target.Close())
	require.NoError(t, mem.Close())
	require.NoError(t, bufs.Close())
	owner.close()
	writer.close()
}
