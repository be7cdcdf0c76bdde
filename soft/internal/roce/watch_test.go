package roce

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// watchResult counts the calls of a watch of a side's memory.
type watchResult struct {
	calls  atomic.Int64
	seen   atomic.Uint32 // the first byte that is watched, at the last call
	cancel func()
}

func (s *side) watch(off, n uint64) *watchResult {
	s.t.Helper()
	w := &watchResult{}
	cancel, err := s.mr.(optional.WatchableMR).Watch(off, n, func() {
		w.calls.Add(1)
		w.seen.Store(uint32(s.mem[off]))
	})
	require.NoError(s.t, err)
	w.cancel = cancel
	return w
}

// writeTo writes n bytes to a peer, and waits until they are in place.
func (s *side) writeTo(to *side, off, n int) {
	s.t.Helper()
	s.request(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{s.sge(0, n)}, RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey()})
}

func (s *side) request(wr verbs.SendWR) {
	s.t.Helper()
	wr.Flags |= verbs.FlagSignaled
	s.post(wr)
	require.Equal(s.t, verbs.StatusSuccess, s.wait(1)[0].Status)
}

func TestWatch(t *testing.T) { overEachPath(t, 1<<16, testWatch) }

func testWatch(t *testing.T, x, y *side) {
	fill(x.mem, 7)
	w, other := y.watch(8192+8, 8), y.watch(0, 4)
	called := func(what string, calls int64) {
		t.Helper()
		assert.Equal(t, calls, w.calls.Swap(0), what)
	}

	x.writeTo(y, 8192+8, 8)
	called("a write of all of it", 1)
	assert.Equal(t, uint32(x.mem[0]), w.seen.Load(), "the bytes were in place")
	x.writeTo(y, 8192, 8)
	x.writeTo(y, 8192+16, 8)
	called("writes before and behind", 0)
	x.writeTo(y, 8192+15, 1)
	x.writeTo(y, 8192+1, 8)
	called("writes of a part", 2)
	x.writeTo(y, 8192+8, 0)
	called("a write of nothing", 0)
	assert.Zero(t, other.calls.Load())
	x.writeTo(y, 0, 1<<16)
	called("a message of sixteen packets, one of which is in it", 1)
	assert.Equal(t, int64(1), other.calls.Load())

	atomics := verbs.SendWR{SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr() + 8192 + 8, RKey: y.mr.RKey(), CompareAdd: 1}
	atomics.Op = verbs.OpFetchAdd
	x.request(atomics)
	atomics.Op = verbs.OpCompareSwap
	x.request(atomics)
	called("atomics", 2)
	atomics.Op = verbs.OpAtomicWrite
	x.request(atomics)
	called("an atomic write", 1)
	atomics.Op = verbs.OpRead
	x.request(atomics)
	atomics.RemoteAddr -= 8
	atomics.Op = verbs.OpFetchAdd
	x.request(atomics)
	called("a read of it, and an atomic beside it", 0)

	w.cancel()
	w.cancel()
	x.writeTo(y, 8192+8, 8)
	called("after the end", 0)
	x.writeTo(y, 0, 1)
	assert.Equal(t, int64(2), other.calls.Load(), "the other one goes on")
}

func TestWatchRefuses(t *testing.T) {
	y := openSide(t, Config{}, 4096)
	watcher := y.mr.(optional.WatchableMR)
	for _, c := range []struct{ off, n uint64 }{{0, 0}, {0, 4097}, {4096, 1}, {4097, 0}, {^uint64(0), 2}, {8, ^uint64(0)}} {
		_, err := watcher.Watch(c.off, c.n, func() {})
		require.ErrorIs(t, err, verbs.ErrInvalid, "%d bytes from %d", c.n, c.off)
	}
	_, err := watcher.Watch(0, 8, nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)

	mr, err := y.dev.DefaultPD().RegMR(make([]byte, 8), 0)
	require.NoError(t, err)
	cancel, err := mr.(optional.WatchableMR).Watch(0, 8, func() {})
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	cancel()
	_, err = mr.(optional.WatchableMR).Watch(0, 8, func() {})
	require.ErrorIs(t, err, verbs.ErrClosed)
}

func TestWatchUnreliable(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	x.use(verbs.UC)
	y.use(verbs.UC)
	x.connectUC(y)
	y.connectUC(x)
	w := y.watch(0, 8)
	x.writeTo(y, 0, 8)
	require.Eventually(t, func() bool { return w.calls.Load() == 1 }, 5*time.Minute, time.Millisecond)
}
