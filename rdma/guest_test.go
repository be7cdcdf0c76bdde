//go:build linux && cgo && verbs

package rdma_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	guest "github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// requireGuest skips tests that TestRig of test/rig runs in its guest.
func requireGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
}

func openAdapter(t *testing.T) verbs.Device {
	t.Helper()
	requireGuest(t)
	return closed(t, must(ibverbs.Driver{}.Open("rxe0")))
}

// openFarSoft opens a software device at the other end of the cable of rxe0.
func openFarSoft(t *testing.T) verbs.Device {
	t.Helper()
	requireGuest(t)
	var d *soft.Device
	require.NoError(t, guest.InNamespace("s", func() (err error) {
		d, err = soft.Open(soft.Config{Interface: "v1"})
		return err
	}))
	return closed(t, d)
}

// devicePairs are the ways that the two ends of a connection can be on.
var devicePairs = []struct {
	name string
	a, b func(*testing.T) verbs.Device
}{
	{"rxe to rxe", openAdapter, openAdapter},
	{"rxe to soft", openAdapter, openFarSoft},
	{"soft to rxe", openFarSoft, openAdapter},
	{"soft to soft", openFarSoft, openFarSoft},
}

// taskResult is how the task of an attempt ended.
type taskResult struct {
	count int
	err   error
}

func recordIn[T anyTask](t *testing.T, e *taskResult) (done func(T), failed func(T, error)) {
	done = func(task T) {
		e.count++
		assert.NoError(t, task.Free())
	}
	failed = func(task T, err error) {
		e.err = err
		done(task)
	}
	return done, failed
}

// attempt is an operation: it makes a pool for one task at a, and returns what
// submits it, to n bytes of b's memory if it takes such.
type attempt struct {
	name      string
	oneSided  bool // it names memory of the peer
	needsRecv bool
	prepare   func(r *rig, e *taskResult) (submit func(m *mmap.Map, off, n int))
}

var attempts = []attempt{
	{"write", true, false, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(m *mmap.Map, off, n int) {
			task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, n), r.a.bufs.Target(m, off, n)))
			require.NoError(r.t, task.Submit())
		}
	}},
	{"write with immediate", true, true, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(m *mmap.Map, off, n int) {
			task := must(pool.WriteImm(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, n), r.a.bufs.Target(m, off, n), 1))
			require.NoError(r.t, task.Submit())
		}
	}},
	{"read", true, false, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(m *mmap.Map, off, n int) {
			task := must(pool.Read(r.a.conns[0], r.a.bufs.Source(m, off, n), r.a.bufs.Target(r.a.mem, 0, n)))
			require.NoError(r.t, task.Submit())
		}
	}},
	{"compare-and-swap", true, false, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(m *mmap.Map, off, _ int) {
			task := must(pool.CompareSwap(r.a.conns[0], r.a.bufs.Target(m, off, 8), 0, 1))
			require.NoError(r.t, task.Submit())
		}
	}},
	{"fetch-and-add", true, false, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(m *mmap.Map, off, _ int) {
			task := must(pool.FetchAdd(r.a.conns[0], r.a.bufs.Target(m, off, 8), 1))
			require.NoError(r.t, task.Submit())
		}
	}},
	{"send", false, true, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(_ *mmap.Map, _, n int) {
			require.NoError(r.t, must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, n))).Submit())
		}
	}},
	{"send with immediate", false, true, func(r *rig, e *taskResult) func(*mmap.Map, int, int) {
		done, failed := recordIn[*rdma.Task](r.t, e)
		pool := must(r.a.ctx.Pool(1, done, failed))
		return func(_ *mmap.Map, _, n int) {
			require.NoError(r.t, must(pool.SendImm(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, n), 1)).Submit())
		}
	}},
}

// refusal is a failure that the peer or its absence makes.
type refusal struct {
	name  string
	takes func(attempt) bool
	a, b  rdma.Config
	// open prepares the peer, and returns the memory to name, and where.
	open      func(r *rig) (*mmap.Map, int)
	want      error
	refused   bool // the peer learns that it refused something
	noReceive bool
}

func oneSided(a attempt) bool { return a.oneSided }

func anyAttempt(attempt) bool { return true }

var refusals = []refusal{
	{name: "unknown key", takes: oneSided, open: func(r *rig) (*mmap.Map, int) {
		return r.forged(func(_, _ *uint64, rkey, _ *uint32) { *rkey ^= 0xff00 }), 0
	}, want: rdma.ErrRemoteAccess, refused: true},
	{name: "past the end", takes: oneSided, open: func(r *rig) (*mmap.Map, int) {
		return r.forged(func(_, size *uint64, _, _ *uint32) { *size += 4096 }), memorySize
	}, want: rdma.ErrRemoteAccess, refused: true},
	{name: "before the beginning", takes: oneSided, open: func(r *rig) (*mmap.Map, int) {
		return r.forged(func(addr, _ *uint64, _, _ *uint32) { *addr -= 8 }), 0
	}, want: rdma.ErrRemoteAccess, refused: true},
	{name: "memory that does not allow it", takes: oneSided, open: func(r *rig) (*mmap.Map, int) {
		m := must(mmap.Alloc(r.b.dev, memorySize, mmap.LocalReadWrite))
		r.t.Cleanup(func() { require.NoError(r.t, m.Close()) })
		return r.forgedOf(m, everything)
	}, want: rdma.ErrRemoteAccess, refused: true},
	{name: "memory of another protection domain", takes: oneSided, open: func(r *rig) (*mmap.Map, int) {
		pd := must(r.b.dev.AllocPD())
		m := must(mmap.New(r.b.dev, mmap.Config{Size: memorySize, Permissions: everything, PD: pd}))
		r.t.Cleanup(func() {
			require.NoError(r.t, m.Close())
			require.NoError(r.t, pd.Close())
		})
		return must(mmap.Import(r.a.dev, must(m.ExportPD(pd)))), 0
	}, want: rdma.ErrRemoteAccess, refused: true},
	// Writes are for the memory map alone to allow.
	{name: "context that does not allow it", takes: func(a attempt) bool { return a.oneSided && !strings.HasPrefix(a.name, "write") }, b: rdma.Config{Permissions: mmap.LocalReadWrite},
		want: rdma.ErrRemoteInvalid, refused: true},
	{name: "no receive", takes: func(a attempt) bool { return a.needsRecv },
		a: rdma.Config{RNRRetry: 1}, want: rdma.ErrRNRRetryExceeded, noReceive: true},
	{name: "peer that is gone", takes: anyAttempt, a: rdma.Config{AckTimeout: 4 * time.Millisecond}, b: rdma.Config{CloseTimeout: rdma.None},
		open: func(r *rig) (*mmap.Map, int) {
			require.NoError(r.t, r.b.ctx.Stop())
			r.until("the peer is gone", func() bool { return r.b.ctx.State() == pe.Idle })
			return r.a.peer, 0
		}, want: rdma.ErrRetryExceeded},
}

// forgedOf exports memory that allows nothing as if it allowed everything: only
// what the peer's descriptor says of it differs.
func (r *rig) forgedOf(m *mmap.Map, perm mmap.Permission) (*mmap.Map, int) {
	open := must(mmap.Register(r.b.dev, m.Bytes(), everything))
	defer func() { require.NoError(r.t, open.Close()) }()
	key := must(m.LKey(r.b.dev.DefaultPD()))
	own := r.b.mem
	r.b.mem = open
	defer func() { r.b.mem = own }()
	return r.forged(func(_, _ *uint64, rkey, p *uint32) {
		*rkey, *p = key, uint32(perm&^mmap.LocalReadWrite)
	}), 0
}

// A task that the peer refuses, or does not answer, ends with the same error
// whichever driver is on either end. Short: each task and failure on one of the device pairs
// with rxe.
func TestGuestTasksFail(t *testing.T) {
	requireGuest(t)
	for i, on := range devicePairs {
		t.Run(on.name, func(t *testing.T) {
			onA, onB := on.a(t), on.b(t)
			for j, f := range refusals {
				for k, a := range attempts {
					if left := testing.Short() && (i == 3 || (i+j+k)%3 != 0); f.takes(a) && !left {
						b := f.b
						if f.refused {
							b.Keepalive = rdma.None // by which the end that refused would notice, if rxe is slow
						}
						t.Run(a.name+", "+f.name, func(t *testing.T) { f.test(newRigOn(t, onA, onB, f.a, b), a) })
					}
				}
			}
		})
	}
}

func (f *refusal) test(r *rig, a attempt) {
	var e taskResult
	submit := a.prepare(r, &e)
	var received *taskResult
	receive := func() {}
	if a.needsRecv && !f.noReceive {
		received, receive = r.receiver()
	}
	r.connect(1)
	receive()
	m, off := r.a.peer, 0
	if f.open != nil {
		m, off = f.open(r)
	}
	submit(m, off, 8)
	r.until("the task has ended", func() bool { return e.count == 1 })
	require.ErrorIs(r.t, e.err, f.want)
	var failure *rdma.TaskError
	require.ErrorAs(r.t, e.err, &failure)
	assert.Same(r.t, r.a.conns[0], failure.Connection)
	r.until("the context ends", func() bool { return r.a.ctx.State() == pe.Idle })
	require.ErrorIs(r.t, r.a.ctx.Err(), f.want)
	require.ErrorIs(r.t, r.a.conns[0].Err(), f.want)
	if f.refused {
		r.checkRefuser(received, f.want)
	}
	if m != r.a.peer {
		require.NoError(r.t, m.Close())
	}
}

// receiver makes a pool at b, and returns what submits a receive.
func (r *rig) receiver() (e *taskResult, submit func()) {
	e = new(taskResult)
	done, failed := recordIn[*rdma.ReceiveTask](r.t, e)
	pool := must(r.b.ctx.ReceivePool(1, done, failed))
	return e, func() {
		require.NoError(r.t, must(pool.Alloc(r.b.bufs.Target(r.b.mem, 0, 64))).Submit())
	}
}

// checkRefuser sees what the end knows that refused a request. rxe (kernel 6.1)
// sends no event, and ends a receive that the request had taken with the status
// of the request; where nothing shows, the context goes on.
func (r *rig) checkRefuser(received *taskResult, want error) {
	b := r.b.ctx
	switch {
	case r.b.dev.Driver() == "soft":
		r.until("the peer has noticed", func() bool { return b.State() == pe.Idle })
		require.ErrorIs(r.t, b.Err(), rdma.ErrPeerRefused)
	case received != nil && errors.Is(want, rdma.ErrRemoteAccess):
		r.until("the receive has failed", func() bool { return b.State() == pe.Idle })
		require.ErrorIs(r.t, received.err, want)
		require.ErrorIs(r.t, b.Err(), want)
	default:
		require.Equal(r.t, pe.Running, b.State())
		require.Equal(r.t, rdma.Ready, r.b.conns[0].State())
	}
}

// A message longer than its receive fails at both ends.
func TestGuestReceiveTooSmall(t *testing.T) {
	requireGuest(t)
	for _, on := range devicePairs {
		t.Run(on.name, func(t *testing.T) {
			r := newRigOn(t, on.a(t), on.b(t), rdma.Config{}, rdma.Config{})
			var sent, received taskResult
			submit := attempts[5].prepare(r, &sent)
			done, failed := recordIn[*rdma.ReceiveTask](t, &received)
			receives := must(r.b.ctx.ReceivePool(1, done, failed))
			r.connect(1)
			require.NoError(t, must(receives.Alloc(r.b.bufs.Target(r.b.mem, 0, 7))).Submit())
			submit(nil, 0, 8)
			r.until("both ends failed", func() bool { return sent.count == 1 && received.count == 1 })
			wantSent, wantReceived := rdma.ErrRemoteInvalid, rdma.ErrLocalLength
			if r.b.dev.Driver() == "ibverbs" {
				wantSent, wantReceived = rdma.ErrRemoteOperation, rdma.ErrTaskFailed
			}
			assert.ErrorIs(t, sent.err, wantSent)
			assert.ErrorIs(t, received.err, wantReceived)
		})
	}
}

// What the adapter's port goes through does not concern a context that has
// nothing under way; and what is under way waits.
func TestGuestPortGoesAndComes(t *testing.T) {
	patient := rdma.Config{AckTimeout: 2 * time.Second} // eight times: a busy guest takes seconds for a command
	r := newRigOn(t, openAdapter(t), openFarSoft(t), patient, rdma.Config{})
	var first, second taskResult
	submit, again := attempts[0].prepare(r, &first), attempts[2].prepare(r, &second)
	r.connect(1)
	up := func() { command(t, "/bin/ip", "-n", "s", "link", "set", "v1", "up") }
	t.Cleanup(func() {
		up()
		// The kernel has dropped the global IPv6 address with the link.
		command(t, "/bin/ip", "-n", "s", "address", "replace", "fd00::2/64", "dev", "v1", "nodad")
	})
	command(t, "/bin/ip", "-n", "s", "link", "set", "v1", "down")
	submit(r.a.peer, 0, 8)
	up()
	r.until("the write has ended", func() bool { return first.count == 1 })
	require.NoError(t, first.err)
	again(r.a.peer, 0, 8)
	r.until("the read has ended", func() bool { return second.count == 1 })
	require.NoError(t, second.err)
	assert.Equal(t, pe.Running, r.a.ctx.State())
}

func command(t *testing.T, words ...string) {
	t.Helper()
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", words, out)
}

// dmaBuf makes memory of another device's, and shows it.
func dmaBuf(t *testing.T, size int) (fd int, mem []byte) {
	t.Helper()
	card, err := os.OpenFile("/dev/dri/card0", os.O_RDWR, 0)
	require.NoError(t, err, "the guest's kernel has vgem")
	defer card.Close()
	call := func(request uintptr, arg unsafe.Pointer) {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, card.Fd(), request, uintptr(arg))
		require.Zero(t, errno)
	}
	// DRM_IOCTL_MODE_CREATE_DUMB and DRM_IOCTL_PRIME_HANDLE_TO_FD (drm-memory(7)).
	dumb := struct {
		height, width, bpp, flags, handle, pitch uint32
		size                                     uint64
	}{height: 1, width: uint32(size), bpp: 8}
	call(0xc02064b2, unsafe.Pointer(&dumb))
	prime := struct {
		handle, flags uint32
		fd            int32
	}{handle: dumb.handle, flags: unix.O_RDWR | unix.O_CLOEXEC}
	call(0xc00c642d, unsafe.Pointer(&prime))
	fd = int(prime.fd)
	mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(mem))
		require.NoError(t, unix.Close(fd))
	})
	return fd, mem
}

// The software device takes dma-bufs that the processor may see; rxe (kernel 6.1)
// takes none, and says so.
func TestGuestDMABuf(t *testing.T) {
	requireGuest(t)
	const size, off, length = 1 << 16, 4096 + 100, 20000
	r := newRigOn(t, openAdapter(t), openFarSoft(t), rdma.Config{}, rdma.Config{})
	fd, seen := dmaBuf(t, size)
	at := func(dev verbs.Device, b mmap.DMABuf) (*mmap.Map, error) {
		return mmap.New(dev, mmap.Config{DMABuf: &b, Permissions: everything})
	}
	_, err := at(r.a.dev, mmap.DMABuf{FD: fd, Offset: off, Length: length})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	t.Log(err)
	_, err = at(r.b.dev, mmap.DMABuf{FD: fd, Offset: off, Length: size})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	t.Log(err)

	var written, read taskResult
	write, readBack := attempts[0].prepare(r, &written), attempts[2].prepare(r, &read)
	m, err := at(r.b.dev, mmap.DMABuf{FD: fd, Offset: off, Length: length})
	require.NoError(t, err)
	remote := must(mmap.Import(r.a.dev, must(m.Export(r.b.dev))))
	r.connect(1)
	fill(r.a.mem.Bytes()[:length], 9)
	write(remote, 0, length)
	r.until("the write has ended", func() bool { return written.count == 1 })
	require.NoError(t, written.err)
	same(t, r.a.mem.Bytes()[:length], seen[off:off+length])
	same(t, make([]byte, off), seen[:off])
	fill(seen, 33)
	readBack(remote, 5, 1000)
	r.until("the read has ended", func() bool { return read.count == 1 })
	require.NoError(t, read.err)
	same(t, seen[off+5:off+1005], r.a.mem.Bytes()[:1000])
	require.NoError(t, remote.Close())
	require.NoError(t, m.Close())
}

// A program that makes and ends everything, again and again, leaves nothing
// behind: not with the kernel, nor of its own.
func TestGuestSoakContextCycles(t *testing.T) {
	requireGuest(t)
	dev := openAdapter(t)
	before := resources(t)
	for range 20 { // what is kept for ever is there now
		cycle(t, dev)
	}
	const spans = 4
	cycles := soak.Rounds(t, 40, 1000)
	first := usage(t)
	last, growth := first, math.MaxInt
	for range spans {
		for range cycles {
			cycle(t, dev)
		}
		now := usage(t)
		growth = min(growth, now.resident-last.resident)
		last = now
	}
	assert.Equal(t, before, resources(t), "what the kernel counts")
	assert.LessOrEqual(t, last.files, first.files, "files")
	assert.LessOrEqual(t, last.goroutines, first.goroutines+2, "goroutines")
	// A goroutine that waits may still refer to the last context, which has some 110 objects.
	const one = 150
	assert.LessOrEqual(t, last.objects, first.objects+spans*cycles/2+one, "objects in Go's heap")
	// The runtime takes memory by the megabyte. A page a cycle would show in
	// every span.
	assert.Less(t, growth, cycles*4, "kB that %d cycles leave", cycles)
}

// cycle is a whole program: a context connected to itself writes, and ends.
func cycle(t *testing.T, dev verbs.Device) {
	engine := pe.New(pe.Config{})
	ctx := must(rdma.New(dev, rdma.Config{Permissions: everything}))
	require.NoError(t, engine.Connect(ctx))
	var e taskResult
	done, failed := recordIn[*rdma.Task](t, &e)
	writes := must(ctx.Pool(8, done, failed))
	mem := must(mmap.Alloc(dev, 1<<16, everything))
	bufs := must(bufinv.New(2))
	peer := must(mmap.Import(dev, must(mem.Export(dev))))
	var conn *rdma.Connection
	ctx.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			own, desc, err := ctx.Export()
			require.NoError(t, err)
			conn = own
			require.NoError(t, conn.Connect(desc))
		case pe.Running:
			task := must(writes.Write(conn, bufs.Source(mem, 0, 8), bufs.Target(peer, 8, 8)))
			require.NoError(t, task.Submit())
			require.NoError(t, ctx.Stop())
		}
	})
	require.NoError(t, ctx.Start())
	require.NoError(t, engine.Run(t.Context()))
	require.Equal(t, 1, e.count)
	for _, o := range []interface{ Close() error }{ctx, engine, bufs, peer, mem} {
		require.NoError(t, o.Close())
	}
}

// resources is what the kernel has of every kind of object (rdma-resource(8)).
func resources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// used is what the process has.
type used struct {
	files, goroutines, objects int
	resident                   int // kB
}

func usage(t *testing.T) used {
	t.Helper()
	runtime.GC()         // empties each sync.Pool at the second time
	debug.FreeOSMemory() // what of Go's heap comes and goes is not counted
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	u := used{files: len(must(os.ReadDir("/proc/self/fd"))), goroutines: runtime.NumGoroutine(), objects: int(heap.HeapObjects)}
	_, after, ok := strings.Cut(string(must(os.ReadFile("/proc/self/status"))), "RssAnon:")
	require.True(t, ok)
	u.resident = must(strconv.Atoi(strings.Fields(after)[0]))
	return u
}
