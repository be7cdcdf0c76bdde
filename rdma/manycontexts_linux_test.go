package rdma_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// eventTimeout is the time of the devices before they repeat a packet.
	eventTimeout  = 500 * time.Millisecond
	contextCount  = 8
	contextTasks  = 64
	contextMemory = 1 << 16
)

// testContext is one of the contexts of the test: it writes and sends to another.
type testContext struct {
	dev  verbs.Device
	ctx  *rdma.Connections
	conn *rdma.Connection
	mem  *mmap.Map
	peer *mmap.Map
	bufs *bufinv.Inventory

	writePool *rdma.Pool
	sendPool  *rdma.Pool
	recvPool  *rdma.ReceivePool
	writes    []*rdma.Task // at rest
	sends     []*rdma.Task // at rest
	recvs     []*rdma.ReceiveTask
}

// manyContexts is the work of the test: eight contexts, on four devices, in pairs. All
// share one engine.
type manyContexts struct {
	t      *testing.T
	rng    *rand.Rand
	engine *pe.Engine
	all    [contextCount]*testContext

	left        int // submissions to come in this phase
	outstanding int // completions to come, those of receives included
	completed   int
}

func newManyContexts(t *testing.T, engine *pe.Engine, seed uint64) *manyContexts {
	w := &manyContexts{t: t, engine: engine, rng: rand.New(rand.NewPCG(seed, 1))}
	var devs [4]verbs.Device
	for i := range devs {
		devs[i] = must(soft.Open(soft.Config{}))
	}
	for i := range w.all {
		w.all[i] = w.addContext(devs[i%len(devs)], i)
	}
	for i, s := range w.all {
		other := w.all[i^1]
		s.peer = must(mmap.Import(s.dev, must(other.mem.Export(other.dev))))
	}
	return w
}

func (w *manyContexts) addContext(dev verbs.Device, i int) *testContext {
	s := &testContext{dev: dev}
	s.ctx = must(rdma.New(dev, rdma.Config{
		Name: fmt.Sprint(i), Permissions: mmap.RemoteWrite, AckTimeout: eventTimeout,
	}))
	s.mem = must(mmap.Alloc(dev, contextMemory, everything))
	s.bufs = must(bufinv.New(4 * contextTasks))
	s.writePool = must(s.ctx.Pool(contextTasks, func(task *rdma.Task) { w.wrote(s, task) },
		func(task *rdma.Task, err error) { require.NoError(w.t, err) }))
	s.sendPool = must(s.ctx.Pool(contextTasks, func(task *rdma.Task) { w.sent(s, task) },
		func(task *rdma.Task, err error) { require.NoError(w.t, err) }))
	s.recvPool = must(s.ctx.ReceivePool(contextTasks, func(task *rdma.ReceiveTask) { w.received(task) },
		func(task *rdma.ReceiveTask, err error) {
			require.ErrorIs(w.t, err, rdma.ErrFlushed)
			require.NoError(w.t, task.Free())
		}))
	require.NoError(w.t, w.engine.Connect(s.ctx))
	return s
}

// start starts all contexts and connects each with its peer.
func (w *manyContexts) start() {
	descs := [contextCount][]byte{}
	for i, s := range w.all {
		require.NoError(w.t, s.ctx.Start())
		s.conn, descs[i] = must2(s.ctx.Export())
	}
	for i, s := range w.all {
		require.NoError(w.t, s.conn.Connect(descs[i^1]))
	}
}

func (w *manyContexts) running() bool {
	for _, s := range w.all {
		if s.ctx.State() != pe.Running {
			return false
		}
	}
	return true
}

// makeTasks takes all tasks out of the pools; receives are posted for good.
func (w *manyContexts) makeTasks() {
	for _, s := range w.all {
		for i := range contextTasks {
			off := 8 * i
			s.writes = append(s.writes, must(s.writePool.Write(s.conn, s.bufs.Source(s.mem, off, 8), s.bufs.Target(s.peer, off, 8))))
			s.sends = append(s.sends, must(s.sendPool.Send(s.conn, s.bufs.Source(s.mem, off, 8))))
			s.recvs = append(s.recvs, must(s.recvPool.Alloc(s.bufs.Target(s.mem, contextMemory/2+off, 8))))
		}
		must(rdma.SubmitAll(s.recvs, 0))
	}
}

func (w *manyContexts) flags() pe.SubmitFlags { return pe.SubmitFlags(w.rng.IntN(4)) }

func (w *manyContexts) write(task *rdma.Task) {
	w.left--
	w.outstanding++
	require.NoError(w.t, task.Submit(w.flags()))
}

func (w *manyContexts) send(task *rdma.Task) {
	w.left--
	w.outstanding += 2
	binary.BigEndian.PutUint64(task.Source().Bytes(), uint64(w.completed))
	require.NoError(w.t, task.Submit(w.flags()))
}

func (w *manyContexts) done() {
	w.outstanding--
	w.completed++
}

func (w *manyContexts) wrote(s *testContext, task *rdma.Task) {
	if w.done(); w.left > 0 {
		w.write(task)
		return
	}
	s.writes = append(s.writes, task)
}

func (w *manyContexts) sent(s *testContext, task *rdma.Task) {
	if w.done(); w.left > 0 {
		w.send(task)
		return
	}
	s.sends = append(s.sends, task)
}

func (w *manyContexts) received(task *rdma.ReceiveTask) {
	w.done()
	require.NoError(w.t, task.Submit())
}

// phase begins submissions, of a random kind and number at a time, by a random
// choice of contexts. Few at a time show a lost event, which many would hide.
func (w *manyContexts) phase() {
	window, busy := 1<<max(w.rng.IntN(12)-5, 0), 1<<w.rng.IntN(4)
	w.left = 1 + w.rng.IntN(5000)
	kind := w.rng.IntN(3)
	for _, i := range w.rng.Perm(contextCount)[:busy] {
		w.begin(w.all[i], kind, window)
	}
}

// begin submits up to n tasks of each kind: writes, sends or both.
func (w *manyContexts) begin(s *testContext, kind, n int) {
	for range n {
		if kind != 1 && w.left > 0 {
			w.write(pop(&s.writes))
		}
		if kind != 0 && w.left > 0 {
			w.send(pop(&s.sends))
		}
	}
}

func pop[T any](list *[]T) T {
	last := len(*list) - 1
	v := (*list)[last]
	*list = (*list)[:last]
	return v
}

func (w *manyContexts) tasksDone() bool { return w.outstanding == 0 && w.left == 0 }

func (w *manyContexts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d completions so far, %d outstanding, %d submissions to come\n", w.completed, w.outstanding, w.left)
	for _, s := range w.all {
		fmt.Fprintf(&b, "context %s: %v, %d in flight, %d writes and %d sends at rest, connection %v\n",
			s.ctx.Name(), s.ctx.State(), s.ctx.InFlight(), len(s.writes), len(s.sends), s.conn.State())
	}
	return b.String()
}

func (w *manyContexts) stop() {
	for _, s := range w.all {
		require.NoError(w.t, rdma.FreeAll(s.writes))
		require.NoError(w.t, rdma.FreeAll(s.sends))
		require.NoError(w.t, s.ctx.Stop())
	}
}

func (w *manyContexts) faults(f soft.Faults) {
	for _, s := range w.all {
		require.NoError(w.t, s.dev.(*soft.Device).SetFaults(f))
	}
}

func (w *manyContexts) idle() bool { return w.engine.Active() == 0 }

func (w *manyContexts) close() {
	for _, s := range w.all {
		require.NoError(w.t, s.ctx.Close())
		require.Equal(w.t, s.bufs.Total(), s.bufs.Available(), "buffers leaked")
		require.NoError(w.t, s.bufs.Close())
		require.NoError(w.t, s.peer.Close())
		require.NoError(w.t, s.mem.Close())
	}
	for _, s := range w.all {
		require.NoError(w.t, s.dev.Close(), "something of the device leaked")
	}
}
