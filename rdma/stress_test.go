package rdma_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// stress is two contexts on one engine that run random legal operations on each other, and
// count what they submit and what comes back.
type stress struct {
	t      *testing.T
	seed   uint64 // of the first round
	rng    *rand.Rand
	engine *pe.Engine
	ends   [2]*stressEnd

	left  int    // callbacks until something happens
	event func() // what happens then
}

// stressEnd is one of the two contexts.
type stressEnd struct {
	*stress
	dev   *soft.Device
	ctx   *rdma.Connections
	mem   *mmap.Map
	peer  *mmap.Map // the other's, imported
	wrong *mmap.Map // the other's, with a key that it does not have
	bufs  *bufinv.Inventory
	kinds []func(*rdma.Connection) (anyTask, error)
	full  func() bool // every task is in its pool

	conns    []*rdma.Connection
	closed   int // connections reported Closed
	inFlight map[anyTask]bool
	held     []anyTask // at rest
	reported pe.State
	seen     taskCounts
}

// taskCounts counts tasks, and what contexts were doing when they entered Stopping.
type taskCounts struct {
	submitted, succeeded, failed int
	starting, busy, broken       int
}

func (t *taskCounts) add(o taskCounts) {
	t.submitted += o.submitted
	t.succeeded += o.succeeded
	t.failed += o.failed
	t.starting += o.starting
	t.busy += o.busy
	t.broken += o.broken
}

const (
	stressMemory      = 1 << 16
	stressTasks       = 6
	stressConnections = 3
)

var stressSizes = []int{1, 8, 100, 4000, 12_000}

func newStress(t *testing.T, seed uint64) *stress {
	s := &stress{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), engine: pe.New(pe.Config{Spin: 10 * time.Microsecond})}
	for i := range s.ends {
		s.ends[i] = s.end(fmt.Sprint(i))
	}
	for i, e := range s.ends {
		other := s.ends[1-i]
		e.peer = must(mmap.Import(e.dev, must(other.mem.Export(other.dev))))
		r := rig{t: t, a: &side{dev: e.dev}, b: &side{dev: other.dev, mem: other.mem}}
		e.wrong = r.forged(func(_, _ *uint64, rkey, _ *uint32) { *rkey ^= 0xff })
	}
	return s
}

// end makes one of the contexts, with a configuration of its own.
func (s *stress) end(name string) *stressEnd {
	e := &stressEnd{stress: s, inFlight: map[anyTask]bool{}}
	e.dev = must(soft.Open(soft.Config{}))
	e.ctx = must(rdma.New(e.dev, rdma.Config{
		Name: name, Permissions: everything, MaxConnections: stressConnections,
		SendQueueSize:         pick(s.rng, 0, 0, 1, 3),
		EndWithLastConnection: s.rng.IntN(4) > 0, CloseTimeout: pick(s.rng, -1, time.Millisecond),
		AckTimeout: 4 * time.Millisecond,
	}))
	e.mem = must(mmap.Alloc(e.dev, stressMemory, everything))
	e.bufs = must(bufinv.New(1024))
	e.pools(s.rng.IntN(4) > 0)
	require.NoError(s.t, s.engine.Connect(e.ctx))
	e.ctx.OnStateChange(e.stateChanged)
	e.ctx.OnConnection(e.connectionChanged)
	return e
}

func pick[V any](rng *rand.Rand, list ...V) V { return list[rng.IntN(len(list))] }

// pools makes a pool of every kind; without receives there is no shared queue.
func (e *stressEnd) pools(receives bool) {
	sends := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	sendImms := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	writes := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	writeImms := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	reads := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	swaps := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	adds := must(e.ctx.Pool(stressTasks, ok[*rdma.Task](e), bad[*rdma.Task](e)))
	var recvs *rdma.ReceivePool
	e.kinds = []func(*rdma.Connection) (anyTask, error){
		func(c *rdma.Connection) (anyTask, error) { return sends.Send(c, e.source(e.mem)) },
		func(c *rdma.Connection) (anyTask, error) { return sendImms.SendImm(c, e.source(e.mem), 1) },
		func(c *rdma.Connection) (anyTask, error) {
			return writes.Write(c, e.source(e.mem), e.target(e.peerMap()))
		},
		func(c *rdma.Connection) (anyTask, error) {
			return writeImms.WriteImm(c, e.source(e.mem), e.target(e.peerMap()), 2)
		},
		func(c *rdma.Connection) (anyTask, error) {
			return reads.Read(c, e.source(e.peerMap()), e.target(e.mem))
		},
		func(c *rdma.Connection) (anyTask, error) {
			return e.withResult(swaps.CompareSwap(c, e.bufs.Target(e.peerMap(), 0, 8), 0, 1))
		},
		func(c *rdma.Connection) (anyTask, error) {
			return e.withResult(adds.FetchAdd(c, e.bufs.Target(e.peerMap(), 0, 8), 1))
		},
	}
	if receives {
		recvs = must(e.ctx.ReceivePool(2*stressTasks, ok[*rdma.ReceiveTask](e), bad[*rdma.ReceiveTask](e)))
		receive := func(*rdma.Connection) (anyTask, error) { return recvs.Alloc(e.room()) }
		e.kinds = append(e.kinds, receive, receive)
	}
	e.full = func() bool {
		return sends.Available() == sends.Cap() && sendImms.Available() == sendImms.Cap() &&
			writes.Available() == writes.Cap() && writeImms.Available() == writeImms.Cap() &&
			reads.Available() == reads.Cap() && swaps.Available() == swaps.Cap() && adds.Available() == adds.Cap() &&
			(recvs == nil || recvs.Available() == recvs.Cap())
	}
}

// peerMap returns the peer's memory, in most cases.
func (e *stressEnd) peerMap() *mmap.Map {
	if e.rng.IntN(200) == 0 {
		return e.wrong
	}
	return e.peer
}

func (e *stressEnd) source(m *mmap.Map) *bufinv.Buf {
	n := pick(e.rng, stressSizes...)
	if n >= 8 && !m.Remote() && e.rng.IntN(4) == 0 {
		return bufinv.List(e.bufs.Source(m, 0, n/2), e.bufs.Source(m, n, n-n/2))
	}
	return e.bufs.Source(m, e.rng.IntN(stressMemory-n), n)
}

// target has room for every source.
func (e *stressEnd) target(m *mmap.Map) *bufinv.Buf {
	n := stressSizes[len(stressSizes)-1]
	return e.bufs.Target(m, stressMemory-n, n)
}

// room is a target for messages, which may be too large for it.
func (e *stressEnd) room() *bufinv.Buf {
	if e.rng.IntN(40) == 0 {
		return e.bufs.Target(e.mem, 0, 50)
	}
	return e.target(e.mem)
}

// withResult gives an atomic a buffer for the original value, or none.
func (e *stressEnd) withResult(task *rdma.Task, err error) (anyTask, error) {
	if err == nil {
		err = task.SetResult(e.result())
	}
	return task, err
}

func (e *stressEnd) result() *bufinv.Buf {
	if e.rng.IntN(2) == 0 {
		return nil
	}
	return e.bufs.Target(e.mem, 8*e.rng.IntN(100), 8)
}

func ok[T anyTask](e *stressEnd) func(T) {
	return func(task T) {
		e.seen.succeeded++
		e.taskDone(task)
	}
}

func bad[T anyTask](e *stressEnd) func(T, error) {
	return func(task T, err error) {
		e.seen.failed++
		var failure *rdma.TaskError
		require.ErrorAs(e.t, err, &failure)
		e.taskDone(task)
	}
}

// taskDone takes a task that came back, and does something with it.
func (e *stressEnd) taskDone(task anyTask) {
	require.True(e.t, e.inFlight[task], "a callback for a task that was not in flight: %v", task.Operation())
	require.False(e.t, task.InFlight())
	delete(e.inFlight, task)
	e.held = append(e.held, task)
	e.count()
	switch choice := e.rng.IntN(20); {
	case choice < 10:
		e.submit(task)
	case choice < 12:
		// Kept, to be freed later.
	case choice < 15:
		e.free(task)
		e.allocate()
	case choice == 15 && e.rng.IntN(20) == 0:
		require.NoError(e.t, pick(e.rng, e.conns...).Close())
	default:
		e.free(pick(e.rng, e.held...))
	}
}

func (e *stressEnd) free(task anyTask) {
	e.held = slices.DeleteFunc(e.held, func(o anyTask) bool { return o == task })
	require.NoError(e.t, task.Free())
}

func (e *stressEnd) freeAll() {
	for len(e.held) > 0 {
		e.free(e.held[e.rng.IntN(len(e.held))])
	}
}

// allocate takes a task of any kind out of its pool and submits it, or keeps it.
func (e *stressEnd) allocate() {
	task, err := pick(e.rng, e.kinds...)(pick(e.rng, e.conns...))
	if err != nil {
		require.True(e.t, errors.Is(err, pe.ErrExhausted) || errors.Is(err, pe.ErrBadState), "%v", err)
		return
	}
	e.held = append(e.held, task)
	if e.rng.IntN(10) > 0 {
		e.submit(task)
	}
}

// submit submits a task that is held. It remains held if that fails.
func (e *stressEnd) submit(task anyTask) {
	if err := task.Submit(pe.SubmitFlags(e.rng.IntN(4))); err != nil {
		require.True(e.t, errors.Is(err, rdma.ErrNotReady) || errors.Is(err, pe.ErrBadState), "%v", err)
		return
	}
	e.seen.submitted++
	e.held = slices.DeleteFunc(e.held, func(o anyTask) bool { return o == task })
	e.inFlight[task] = true
}

func (e *stressEnd) stateChanged(prev, next pe.State) {
	require.Equal(e.t, e.reported, prev, "changes of state come in order")
	e.reported = next
	switch {
	case next == pe.Running:
		for range e.rng.IntN(40) {
			e.allocate()
		}
	case next == pe.Stopping && e.ctx.Err() != nil:
		e.seen.broken++
	case next == pe.Stopping && prev == pe.Starting:
		e.seen.starting++
	case next == pe.Stopping && len(e.inFlight) > 0:
		e.seen.busy++
	}
	e.count()
}

// count counts a callback.
func (s *stress) count() {
	if s.left--; s.left == 0 {
		s.event()
	}
}

func (e *stressEnd) connectionChanged(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
	if state == rdma.Closed {
		e.closed++
	}
	e.count()
}

// close ends everything: nothing may be left over.
func (s *stress) close() {
	for _, e := range s.ends {
		require.NoError(s.t, e.ctx.Close())
		require.NoError(s.t, e.bufs.Close())
		require.NoError(s.t, e.peer.Close())
		require.NoError(s.t, e.wrong.Close())
	}
	for _, e := range s.ends {
		require.NoError(s.t, e.mem.Close())
		require.NoError(s.t, e.dev.Close(), "something of the device leaked")
	}
	require.NoError(s.t, s.engine.Close())
}

func (e *stressEnd) String() string {
	s := fmt.Sprintf("context %s: %v, reported %v, %d in flight, %d held, %d allocated, err %v",
		e.ctx.Name(), e.ctx.State(), e.reported, len(e.inFlight), len(e.held), e.ctx.Allocated(), e.ctx.Err())
	for _, conn := range e.conns {
		s += fmt.Sprintf("\n  %v: %v, err %v", conn, conn.State(), conn.Err())
	}
	return s
}
