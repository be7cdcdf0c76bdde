package roce

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// faultyMemory is memory that can become inaccessible.
type faultyMemory struct {
	t    testing.TB
	mem  []byte
	file *os.File
}

func newFaultyMemory(t testing.TB, n int) *faultyMemory {
	file, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(int64(n)))
	mem, err := unix.Mmap(int(file.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(mem))
		require.NoError(t, file.Close())
	})
	return &faultyMemory{t, mem, file}
}

// faultKinds are the ways to make memory inaccessible.
var faultKinds = map[string]func(b *faultyMemory){
	"SIGBUS":  func(b *faultyMemory) { assert.NoError(b.t, b.file.Truncate(0)) },
	"SIGSEGV": func(b *faultyMemory) { assert.NoError(b.t, unix.Mprotect(b.mem, unix.PROT_NONE)) },
}

// If memory becomes inaccessible, only the requests that use it fail, with a status that says
// whose memory it was. The process and other connections of the device continue.
func TestSoakMemoryFaults(t *testing.T) {
	rounds := soak.Rounds(t, 1, 100)
	for _, path := range []string{"shared memory", "UDP", "itself", "one device"} {
		for signal, fault := range faultKinds {
			if path == "one device" && signal == "SIGBUS" {
				continue // memory that is referred to cannot be cut short
			}
			for _, use := range []string{"peer writes", "peer reads", "peer sends", "peer adds", "peer writes a word", "own write", "own word", "own read", "own send"} {
				for _, n := range []int{8, 100_000} {
					if (use == "peer adds" || strings.HasSuffix(use, "word")) && n != 8 {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%d", path, signal, use, n), func(t *testing.T) {
						for range rounds {
							t.Run("", func(t *testing.T) { memoryFault(t, path, use, n, fault) })
						}
					})
				}
			}
		}
	}
}

// memoryFault posts requests at x until one fails, because the memory of y, or that of x, has
// become inaccessible.
func memoryFault(t *testing.T, path, use string, n int, fault func(*faultyMemory)) {
	const size = 128 << 10
	cfg := Config{DisableLocal: path == "UDP"}
	x := openAdaptive(t, cfg, 2*size)
	y := x
	switch path {
	case "itself":
	case "one device":
		y = x.addQueuePair(2*size, verbs.QPInit{AdaptiveRetransmission: true})
		y.connect(x)
	default:
		y = openAdaptive(t, cfg, 2*size)
		y.connect(x)
	}
	x.connect(y)
	if path == "shared memory" {
		awaitSharedMemory(x, y)
	}
	b := newFaultyMemory(t, size)
	if path == "one device" {
		mem, free, err := x.dev.AllocMemory(size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, free()) })
		b = &faultyMemory{t: t, mem: mem}
	}
	own := strings.HasPrefix(use, "own")
	owner := y
	if own {
		owner = x
	}
	mr := must(owner.dev.DefaultPD().RegMR(b.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	broken := verbs.SGE{Addr: mr.Addr(), Length: uint32(n), LKey: mr.LKey()}
	wr := verbs.SendWR{Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: mr.Addr(), RKey: mr.RKey(), CompareAdd: 1}
	receive, want := broken, verbs.StatusRemoteOperationError
	switch {
	case own:
		wr.RemoteAddr, wr.RKey, wr.SGL[0] = y.mr.Addr()+size, y.mr.RKey(), broken
		receive, want = y.sge(size, n), verbs.StatusLocalProtectionError
	case path == "itself":
		want = verbs.StatusFlushed // it is its own responder, which goes into error
	}
	switch use {
	case "peer writes", "own write":
		wr.Op = verbs.OpWrite
	case "peer reads", "own read":
		wr.Op = verbs.OpRead
	case "peer sends", "own send":
		wr.Op = verbs.OpSend
	case "peer adds":
		wr.Op = verbs.OpFetchAdd
	case "peer writes a word", "own word":
		wr.Op = verbs.OpAtomicWrite
	}
	var work sync.WaitGroup
	work.Go(func() { fault(b) })
	if wr.Op == verbs.OpFetchAdd {
		work.Wait() // in the midst of one, the fault would be in the race detector's own code
	}
	const receiveID = 100
	for status := verbs.StatusSuccess; status == verbs.StatusSuccess; {
		if wr.Op == verbs.OpSend {
			_, err := y.qp.PostRecv([]verbs.RecvWR{{ID: receiveID, SGL: []verbs.SGE{receive}}})
			require.NoError(t, err)
		}
		x.post(wr)
		for done := false; !done; {
			for _, wc := range x.wait(1) {
				if wc.ID != receiveID {
					status, done = wc.Status, true
				}
			}
		}
		if status != verbs.StatusSuccess {
			assert.Equal(t, want, status)
		}
		_, err := y.cq.Poll(y.wcs)
		require.NoError(t, err)
	}
	work.Wait()

	z := *x
	z.cq = must(x.dev.CreateCQ(verbs.CQInit{Capacity: 16}))
	z.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: z.cq, RecvCQ: z.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}))
	z.connect(&z)
	z.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: x.mr.Addr() + size, RKey: x.mr.RKey()})
	assert.Equal(t, verbs.StatusSuccess, z.wait(1)[0].Status, "another connection")
	require.NoError(t, z.qp.Close())
	require.NoError(t, z.cq.Close())
}

// Memory is registered only if it can be accessed as the access rights allow.
func TestRegisterInaccessibleMemory(t *testing.T) {
	x := openSide(t, Config{}, 4096)
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	register := func(access verbs.Access) error {
		mr, err := x.dev.DefaultPD().RegMR(mem, access)
		if err == nil {
			require.NoError(t, mr.Close())
		}
		return err
	}
	rights := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	require.NoError(t, register(rights))
	require.NoError(t, unix.Mprotect(mem[page:2*page], unix.PROT_READ))
	err = register(rights)
	require.ErrorIs(t, err, unix.EFAULT)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, fmt.Sprintf("%#x", uintptr(unsafe.Pointer(&mem[page]))))
	require.NoError(t, register(verbs.AccessRemoteRead))
	require.NoError(t, unix.Mprotect(mem[page:2*page], unix.PROT_NONE))
	require.ErrorIs(t, register(verbs.AccessRemoteRead), unix.EFAULT)
	require.NoError(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE))
	require.NoError(t, register(rights))
}

// Inline data that cannot be read are refused.
func TestInlineFault(t *testing.T) {
	x := openLoopback(t, Config{}, 4096)
	b := newFaultyMemory(t, 4096)
	faultKinds["SIGBUS"](b)
	_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.FlagInline, SGL: []verbs.SGE{{Addr: addressOfBytes(b.mem), Length: 8}}}})
	require.ErrorIs(t, err, unix.EFAULT)
}

// Inaccessible memory in a packet between queue pairs of one device fails its request as on
// other paths.
func TestFaultBehindAReference(t *testing.T) {
	const size = 128 << 10
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite, verbs.OpSend} {
		for _, n := range []int{10_000, 100_000} {
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				x := openAdaptive(t, Config{}, size)
				y := x.addQueuePair(size, verbs.QPInit{AdaptiveRetransmission: true})
				x.connect(y)
				y.connect(x)
				mem, free, err := x.dev.AllocMemory(size)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, free()) })
				mr := must(x.dev.DefaultPD().RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteRead))
				t.Cleanup(func() { require.NoError(t, mr.Close()) })
				wr := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Addr: mr.Addr(), Length: uint32(n), LKey: mr.LKey()}}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
				want := verbs.StatusLocalProtectionError
				if op == verbs.OpRead {
					wr.SGL, wr.RemoteAddr, wr.RKey, want = []verbs.SGE{x.sge(0, n)}, mr.Addr(), mr.RKey(), verbs.StatusRemoteOperationError
				}
				request := func() []verbs.Status {
					if op == verbs.OpSend {
						y.recv(1, y.sge(0, n))
					}
					x.post(wr)
					return statuses(x.wait(1))
				}
				require.Equal(t, []verbs.Status{verbs.StatusSuccess}, request()) // from now on, packets refer to the memory
				require.NoError(t, unix.Mprotect(mem, unix.PROT_NONE))
				require.Equal(t, []verbs.Status{want}, request())
				if op == verbs.OpRead {
					require.Equal(t, verbs.QPError, must(y.qp.Query()).State)
				} else {
					require.Equal(t, verbs.QPReadyToSend, must(y.qp.Query()).State)
				}
			})
		}
	}
}

// A request for inaccessible memory of a region on demand fails, and what is accessible later is
// accessed.
func TestOnDemand(t *testing.T) {
	overEachPath(t, 64<<10, func(t *testing.T, x, y *side) {
		const rights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
		size := 32 << 10
		mem, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(mem)) }()
		require.NoError(t, unix.Mprotect(mem[size:], unix.PROT_NONE))
		pd := y.dev.DefaultPD().(cverbs.PD)
		_, err = pd.RegMRAt(mem, 8, rights, false)
		require.ErrorIs(t, err, unix.EFAULT)
		mr, err := pd.RegMRAt(mem, 8, rights, true)
		require.NoError(t, err)
		refused := counter(t, y.dev, "resp_remote_access_errors")
		request := func(op verbs.Opcode, off, n int) verbs.Status {
			x.post(verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: mr.Addr() + uint64(off), RKey: mr.RKey()})
			status := x.wait(1)[0].Status
			if status != verbs.StatusSuccess {
				refused++
				reconnect(x, y)
			}
			return status
		}
		for _, c := range []struct {
			op verbs.Opcode
			n  int
		}{{verbs.OpWrite, 8}, {verbs.OpWrite, size}, {verbs.OpRead, 8}, {verbs.OpRead, size}, {verbs.OpFetchAdd, 8}, {verbs.OpCompareSwap, 8}, {verbs.OpAtomicWrite, 8}} {
			require.Equal(t, verbs.StatusSuccess, request(c.op, size-c.n, c.n), "%v of %d bytes", c.op, c.n)
			require.Equal(t, verbs.StatusRemoteAccessError, request(c.op, size, c.n), "%v of %d bytes", c.op, c.n)
			require.Equal(t, refused, counter(t, y.dev, "resp_remote_access_errors"), "%v of %d bytes", c.op, c.n)
		}
		e := verbs.SGE{Addr: mr.Addr() + uint64(size), Length: 8, LKey: mr.LKey()}
		require.NoError(t, pd.Prefetch(e, true, false))
		require.ErrorIs(t, pd.Prefetch(e, true, true), unix.EFAULT)

		require.NoError(t, unix.Mprotect(mem[size:], unix.PROT_READ|unix.PROT_WRITE))
		require.NoError(t, pd.Prefetch(e, true, true))
		fill(x.mem, 5)
		require.Equal(t, verbs.StatusSuccess, request(verbs.OpWrite, size, size))
		require.Equal(t, x.mem[:size], mem[size:])

		// A change says whether it is still on demand.
		change := cverbs.MRChange{ChangeAccess: true, Access: rights &^ verbs.AccessRemoteWrite}
		require.NoError(t, mr.(cverbs.MR).Reregister(change))
		require.ErrorIs(t, pd.Prefetch(e, false, true), unix.EINVAL)
		require.Equal(t, verbs.StatusSuccess, request(verbs.OpRead, size, 8))
		change.OnDemand = true
		require.NoError(t, mr.(cverbs.MR).Reregister(change))
		require.NoError(t, unix.Mprotect(mem[size:], unix.PROT_NONE))
		require.NoError(t, mr.(cverbs.MR).Reregister(cverbs.MRChange{NewKey: true}))
		change.OnDemand = false
		require.ErrorIs(t, mr.(cverbs.MR).Reregister(change), unix.EFAULT)
		require.Equal(t, verbs.StatusRemoteAccessError, request(verbs.OpRead, size, 8))
		require.NoError(t, mr.Close())
		require.ErrorIs(t, pd.Prefetch(e, false, false), unix.EFAULT)
	})
}

// A region on demand may have any memory of the process, also free memory of Go's heap. A pointer there
// would end the process in the next garbage collection.
func TestOnDemandInFreeMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing is collected in between, and no free memory used
	overEachPath(t, 4<<10, func(t *testing.T, x, y *side) {
		const rights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
		type object [9 << 7]uint64
		var free []uint64
		objects := make([]*object, 200)
		for i := range objects {
			objects[i] = new(object)
		}
		for i := 0; i < len(objects); i += 2 {
			free = append(free, uint64(uintptr(unsafe.Pointer(objects[i]))))
			objects[i] = nil
		}
		runtime.GC()
		length := uint64(1<<47 - 4096) // no constant, which an int of 32 bits cannot hold
		all := unsafe.Slice((*byte)(unsafe.Add(nil, 4096)), length)
		yMR := must(y.dev.DefaultPD().(cverbs.PD).RegMRAt(all, 4096, rights, true))
		xMR := must(x.dev.DefaultPD().(cverbs.PD).RegMRAt(all, 4096, rights, true))
		at := func(mr verbs.MR, n int) (e verbs.SGE) {
			e, free = verbs.SGE{Addr: free[0], Length: uint32(n), LKey: mr.LKey()}, free[1:]
			return e
		}
		collect := func() {
			runtime.GC()
			runtime.GC()
		}
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite, verbs.OpSend} {
			for _, n := range []int{8, 4 << 10} {
				if n > 8 && (op == verbs.OpFetchAdd || op == verbs.OpCompareSwap || op == verbs.OpAtomicWrite) {
					continue
				}
				remote := at(yMR, n)
				wr := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{at(xMR, n)}, RemoteAddr: remote.Addr, RKey: yMR.RKey()}
				if op == verbs.OpSend {
					_, err := y.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{remote}}})
					require.NoError(t, err)
					collect()
				}
				x.post(wr)
				collect()
				require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status, "%v of %d bytes", op, n)
				if op == verbs.OpSend {
					require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
				}
				collect()
			}
		}
		require.NoError(t, yMR.Close())
		require.NoError(t, xMR.Close())
		runtime.KeepAlive(objects)
	})
}

// A message fails if it begins in accessible memory of a region on demand and ends beyond that: on each
// path, with each kind of key, in one packet and in several.
func TestOnDemandInPart(t *testing.T) {
	const size = 32 << 10
	open := func(t *testing.T, path string) (x, y *side, mr verbs.MR) {
		cfg := Config{DisableLocal: path == "UDP"}
		x = openSide(t, cfg, size)
		if y = x; path != "itself" {
			y = openSide(t, cfg, size)
			y.connect(x)
		}
		x.connect(y)
		if path == "shared memory" {
			awaitSharedMemory(x, y)
		}
		mem, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		require.NoError(t, unix.Mprotect(mem[size:], unix.PROT_NONE))
		mr = must(y.dev.DefaultPD().(cverbs.PD).RegMRAt(mem, 1<<20, windowRights|verbs.AccessLocalWrite|verbs.AccessMWBind, true))
		t.Cleanup(func() {
			require.NoError(t, mr.Close())
			require.NoError(t, unix.Munmap(mem))
		})
		return x, y, mr
	}
	for _, path := range []string{"UDP", "shared memory", "itself"} {
		for kind, name := range []string{"region", "window of type 1", "window of type 2"} {
			for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
				if op == verbs.OpSend && kind > 0 {
					continue
				}
				for _, n := range []int{8, 16 << 10} {
					t.Run(fmt.Sprintf("%s/%s/%v/%d", path, name, op, n), func(t *testing.T) {
						x, y, mr := open(t, path)
						rkey := mr.RKey()
						if kind > 0 {
							l := &windowOwner{side: y, mr: mr, mw: must(y.dev.DefaultPD().(verbs.WindowPD).AllocMW(verbs.MWType1 + verbs.MWType(kind-1)))}
							t.Cleanup(func() { require.NoError(t, l.mw.Close()) })
							l.bind(0, 2*size)
							rkey = l.mw.RKey()
						}
						at := mr.Addr() + uint64(size-n/2)
						want, refused := verbs.StatusRemoteAccessError, counter(t, y.dev, "resp_remote_access_errors")+1
						if op == verbs.OpSend {
							want, refused = verbs.StatusRemoteOperationError, refused-1
							y.postRecv(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{{Addr: at, Length: uint32(n), LKey: mr.LKey()}}})
						}
						x.post(verbs.SendWR{ID: 1, Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: at, RKey: rkey})
						var all []verbs.WC
						switch {
						case path == "itself" && op == verbs.OpSend:
							all = x.wait(2)
						case op == verbs.OpSend:
							all = append(x.wait(1), y.wait(1)...)
						default:
							all = x.wait(1)
						}
						got := byID(all)
						if path == "itself" { // it is its own responder, which goes into error
							require.Contains(t, []verbs.Status{want, verbs.StatusFlushed}, got[1].Status)
						} else {
							require.Equal(t, want, got[1].Status)
						}
						if op == verbs.OpSend {
							require.Equal(t, verbs.StatusLocalProtectionError, got[2].Status)
						}
						require.Equal(t, refused, counter(t, y.dev, "resp_remote_access_errors"))
					})
				}
			}
		}
	}
	t.Run("UC", func(t *testing.T) {
		x, y, mr := open(t, "UDP")
		x.use(verbs.UC)
		y.use(verbs.UC)
		x.connectUC(y)
		y.connectUC(x)
		x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: mr.Addr() + size - 4, RKey: mr.RKey()})
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
		require.Eventually(t, func() bool { return counter(t, y.dev, "resp_remote_access_errors") == 1 }, 5*time.Minute, time.Millisecond)
	})
}
