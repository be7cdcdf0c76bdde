//go:build linux && cgo && verbs

package syncevent_test

import (
	"context"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/verbs"
)

// guestDevice opens rxe0, or a software device at the other end of its cable.
func guestDevice(t *testing.T, name string) verbs.Device {
	t.Helper()
	open := func() (verbs.Device, error) { return ibverbs.Driver{}.Open(name) }
	if name == "soft" {
		open = func() (verbs.Device, error) { return soft.Open(soft.Config{Interface: "v1"}) }
	}
	var dev verbs.Device
	enter := func() (err error) {
		dev, err = open()
		return err
	}
	if name == "soft" {
		require.NoError(t, rig.InNamespace("s", enter))
	} else {
		require.NoError(t, enter())
	}
	return dev
}

// guestProgram is a program on a device of the guest, on an engine that it shares.
func guestProgram(t *testing.T, engine *pe.Engine, name string) *program {
	t.Helper()
	p := &program{t: t, dev: guestDevice(t, name), engine: engine}
	var err error
	p.ctx, err = rdma.New(p.dev, rdma.Config{Permissions: mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic})
	require.NoError(t, err)
	require.NoError(t, engine.Connect(p.ctx))
	return p
}

// Whoever sleeps on an event is woken by the writes and atomics of a peer,
// whichever driver is on either end. How late is logged, beside how late a timer
// is that does nothing else: the guest is slow, and its processors are shared.
func TestGuestPeersWake(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	for _, on := range []struct{ writer, owner string }{{"rxe0", "rxe0"}, {"soft", "rxe0"}, {"rxe0", "soft"}} {
		t.Run(on.writer+" to "+on.owner, func(t *testing.T) {
			w := newWakeRig(t, on.writer, on.owner)
			for _, asleep := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 120 * time.Millisecond} {
				w.wakes("write", asleep, func(v uint64) error {
					*w.word = v
					task, err := w.writes.Write(w.writer.conn, w.bufs.Source(w.mem, 0, 8), w.bufs.Target(w.target, 0, 8))
					require.NoError(t, err)
					return task.Submit()
				})
				w.wakes("fetch-and-add", asleep, func(uint64) error {
					task, err := w.adds.FetchAdd(w.writer.conn, w.bufs.Target(w.target, 0, 8), 1)
					require.NoError(t, err)
					return task.Submit()
				})
			}
			w.close()
		})
	}
}

// wakeRig has an event of one program within the reach of another.
type wakeRig struct {
	t             *testing.T
	engine        *pe.Engine
	writer, owner *program
	event         *syncevent.Event
	remote        *syncevent.Event
	target, mem   *mmap.Map
	word          *uint64
	bufs          *bufinv.Inventory
	writes        *rdma.Pool
	adds          *rdma.Pool
	value         uint64    // that the event has
	done          time.Time // of the last task
}

func newWakeRig(t *testing.T, writer, owner string) *wakeRig {
	t.Helper()
	engine := pe.New(pe.Config{})
	w := &wakeRig{t: t, engine: engine, writer: guestProgram(t, engine, writer), owner: guestProgram(t, engine, owner)}
	var err error
	w.event, err = syncevent.New(w.owner.dev, syncevent.Config{Publishers: syncevent.PublishRemote})
	require.NoError(t, err)
	desc, err := w.event.Export()
	require.NoError(t, err)
	w.remote, err = syncevent.Import(w.writer.dev, desc)
	require.NoError(t, err)
	w.target = as(t, w.writer.dev, w.remote)
	w.mem, err = mmap.Alloc(w.writer.dev, 4096, mmap.LocalReadWrite)
	require.NoError(t, err)
	w.word = (*uint64)(unsafe.Pointer(&w.mem.Bytes()[0]))
	w.bufs, err = bufinv.New(4)
	require.NoError(t, err)
	failed := func(err error) { require.NoError(t, err) }
	w.writes, err = w.writer.ctx.Pool(1, func(task *rdma.Task) {
		w.done = time.Now()
		require.NoError(t, task.Free())
	}, func(_ *rdma.Task, err error) { failed(err) })
	require.NoError(t, err)
	w.adds, err = w.writer.ctx.Pool(1, func(task *rdma.Task) {
		w.done = time.Now()
		require.Equal(t, w.value-1, task.Original())
		require.NoError(t, task.Free())
	}, func(_ *rdma.Task, err error) { failed(err) })
	require.NoError(t, err)
	w.writer.export()
	w.owner.export()
	require.NoError(t, w.writer.conn.Connect(w.owner.desc))
	require.NoError(t, w.owner.conn.Connect(w.writer.desc))
	w.until(func() bool { return w.writer.ctx.State() == pe.Running && w.owner.ctx.State() == pe.Running })
	return w
}

func (w *wakeRig) until(done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !done(); {
		_, err := w.engine.Progress()
		require.NoError(w.t, err)
		require.True(w.t, time.Now().Before(deadline), "it never happened")
	}
}

// wakes has a goroutine sleep for a time, and the next value of the event wake it.
func (w *wakeRig) wakes(what string, asleep time.Duration, submit func(v uint64) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	defer cancel()
	type result struct {
		v   uint64
		at  time.Time
		err error
	}
	woken := make(chan result, 1)
	before := w.value
	go func() {
		v, err := w.event.Wait(ctx, syncevent.Greater(before))
		woken <- result{v, time.Now(), err}
	}()
	time.Sleep(asleep)
	w.value++
	w.done = time.Time{}
	require.NoError(w.t, submit(w.value))
	w.until(func() bool { return !w.done.IsZero() })
	due := time.Now().Add(50 * time.Millisecond)
	timer := time.NewTimer(50 * time.Millisecond)
	got := <-woken
	<-timer.C
	late := time.Since(due)
	require.NoError(w.t, got.err)
	require.Equal(w.t, w.value, got.v)
	w.t.Logf("%s after %v of sleep: woken %v after the task was done; a timer was late by %v", what, asleep, got.at.Sub(w.done), late)
}

func (w *wakeRig) close() {
	require.NoError(w.t, w.writer.ctx.Stop())
	require.NoError(w.t, w.owner.ctx.Stop())
	w.until(func() bool { return w.writer.ctx.State() == pe.Idle && w.owner.ctx.State() == pe.Idle })
	for _, o := range []interface{ Close() error }{
		w.remote, w.target, w.mem, w.bufs, w.event, w.writer.ctx, w.owner.ctx, w.engine, w.writer.dev, w.owner.dev,
	} {
		require.NoError(w.t, o.Close())
	}
}
