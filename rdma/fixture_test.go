package rdma_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	memorySize = 4 << 20
	everything = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
)

// side is one of the two programs of a test: they share an engine.
type side struct {
	t    *testing.T
	dev  verbs.Device
	ctx  *rdma.Connections
	mem  *mmap.Map // its own
	peer *mmap.Map // the other's, imported
	bufs *bufinv.Inventory

	conns    []*rdma.Connection
	states   []pe.State // entered, in order
	reported []string   // states of connections, Connecting left out
}

type rig struct {
	t      *testing.T
	engine *pe.Engine
	a, b   *side
	sim    *sim.Sim // of the devices; nil: they are not simulated
}

// newRig makes two contexts on two software devices, all but started.
func newRig(t *testing.T, a, b rdma.Config) *rig {
	return newRigOn(t, openSoft(t), openSoft(t), a, b)
}

// newSimRig makes them on the hosts a and b of a simulation.
func newSimRig(s *sim.Sim, a, b rdma.Config) *rig {
	return newRigOn(testOf(s), s.Host("a").Device(), s.Host("b").Device(), a, b)
}

// testOf returns the test that a simulation runs in.
func testOf(s *sim.Sim) *testing.T { return s.TB.(*testing.T) }

// runSimulated is t.Run for a test that runs in simulations.
func runSimulated(t *testing.T, name string, seeds int, test func(t *testing.T, s *sim.Sim)) {
	t.Run(name, func(t *testing.T) {
		sim.Check(t, seeds, func(s *sim.Sim) { test(testOf(s), s) })
	})
}

// simulationOf returns the simulation of a device, if it is simulated.
func simulationOf(dev verbs.Device) *sim.Sim {
	if s := host.Of(dev).Scheduler(); s != nil {
		return s.Simulation().(*sim.Sim)
	}
	return nil
}

func openSoft(t *testing.T) verbs.Device {
	t.Helper()
	return closed(t, must(soft.Open(soft.Config{})))
}

// openFaulty opens a device that fails as a test says.
func openFaulty(t *testing.T) *faultydevice.Device {
	t.Helper()
	return closed(t, must(faultydevice.Open(soft.Config{})))
}

// openByUDP opens a device whose packets to others of this machine go by UDP.
func openByUDP(t *testing.T) verbs.Device {
	t.Helper()
	return closed(t, must(soft.Open(soft.Config{DisableLocal: true})))
}

// closed has the device closed at the end of the test.
func closed[D verbs.Device](t *testing.T, dev D) D {
	t.Cleanup(func() { require.NoError(t, dev.Close(), "something of the device leaked") })
	return dev
}

// newRigOn makes them on two open devices.
func newRigOn(t *testing.T, onA, onB verbs.Device, a, b rdma.Config) *rig {
	t.Helper()
	engine := pe.New(pe.Config{})
	r := &rig{t: t, engine: engine}
	// Runs after the cleanups of the sides.
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	a.Name, b.Name = "a", "b"
	r.a, r.b = r.side(onA, a), r.side(onB, b)
	r.a.peer, r.b.peer = r.imported(r.b, r.a), r.imported(r.a, r.b)
	return r
}

// side makes one of the programs; its context ends with its last connection.
func (r *rig) side(dev verbs.Device, cfg rdma.Config) *side {
	cfg.EndWithLastConnection = true
	return r.sideThatStays(dev, cfg)
}

// sideThatStays is one whose context goes on without connections, unless the
// configuration says otherwise.
func (r *rig) sideThatStays(dev verbs.Device, cfg rdma.Config) *side {
	t := r.t
	r.sim = simulationOf(dev)
	s := &side{t: t, dev: dev}
	if cfg.Permissions == 0 {
		cfg.Permissions = everything
	}
	var err error
	s.ctx, err = rdma.New(dev, cfg)
	require.NoError(t, err)
	s.mem, err = mmap.Alloc(dev, memorySize, everything)
	require.NoError(t, err)
	s.bufs, err = bufinv.New(4096)
	require.NoError(t, err)
	require.NoError(t, r.engine.Connect(s.ctx))
	s.ctx.OnStateChange(func(_, next pe.State) { s.states = append(s.states, next) })
	s.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if state != rdma.Connecting {
			s.reported = append(s.reported, state.String())
		}
	})
	t.Cleanup(func() {
		require.NoError(t, s.ctx.Stop())
		r.until("the context is Idle", func() bool { return s.ctx.State() == pe.Idle })
		require.NoError(t, s.ctx.Close())
		require.Equal(t, s.bufs.Total(), s.bufs.Available(), "buffers leaked")
		require.NoError(t, s.bufs.Close())
		if s.peer != nil {
			require.NoError(t, s.peer.Close())
		}
		require.NoError(t, s.mem.Close())
	})
	return s
}

func (r *rig) imported(from, to *side) *mmap.Map {
	desc, err := from.mem.Export(from.dev)
	require.NoError(r.t, err)
	m, err := mmap.Import(to.dev, desc)
	require.NoError(r.t, err)
	return m
}

// until drives the engine until the condition holds.
func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for idle := 0; !done(); {
		n, err := r.engine.Progress()
		require.NoError(r.t, err)
		if idle++; n > 0 {
			idle = 0
		} else if r.sim != nil {
			pauseSimulated(r.sim, idle)
		} else if idle > 1000 { // a long wait leaves the processor to others
			time.Sleep(100 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			require.FailNow(r.t, "never happened: "+what)
		}
	}
}

// pauseSimulated lets the simulation run between passes of an engine that find nothing to do:
// the longer, the more of them there were, up to 12.8 ms.
func pauseSimulated(s *sim.Sim, idle int) {
	if idle >= 20 {
		s.Run(100 * time.Microsecond << min(idle/20-1, 7))
	}
}

// drive drives the engine for that long, of the simulation's time.
func (r *rig) drive(d time.Duration) {
	r.t.Helper()
	for end := r.sim.Now() + d; r.sim.Now() < end; {
		_, err := r.engine.Progress()
		require.NoError(r.t, err)
		r.sim.Run(max(min(d/1000, end-r.sim.Now()), 0))
	}
	_, err := r.engine.Progress()
	require.NoError(r.t, err)
}

// settle waits until packets between two software devices go through shared memory: to get
// there takes memory, and what is measured after it does not change its way.
func (r *rig) settle() {
	r.t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	r.until("packets go through shared memory", func() bool {
		for _, s := range []*side{r.a, r.b} {
			for _, conn := range s.conns {
				if conn.Counters().Path != verbs.PathSharedMemory {
					return false
				}
			}
		}
		return true
	})
}

// connect starts both contexts with n connections between them.
func (r *rig) connect(n int) {
	r.t.Helper()
	r.start()
	require.Equal(r.t, pe.Starting, r.a.ctx.State())
	for range n {
		r.link()
	}
	r.until("both contexts run", func() bool {
		return r.a.ctx.State() == pe.Running && r.b.ctx.State() == pe.Running
	})
}

// link makes one more connection.
func (r *rig) link() (a, b *rdma.Connection) {
	r.t.Helper()
	a, b, descA, descB := r.export()
	require.NoError(r.t, a.Connect(descB))
	require.NoError(r.t, b.Connect(descA))
	r.a.conns, r.b.conns = append(r.a.conns, a), append(r.b.conns, b)
	return a, b
}

// start starts both contexts.
func (r *rig) start() {
	r.t.Helper()
	require.NoError(r.t, r.a.ctx.Start())
	require.NoError(r.t, r.b.ctx.Start())
}

// export makes both ends of a connection, without connecting them.
func (r *rig) export() (a, b *rdma.Connection, descA, descB []byte) {
	r.t.Helper()
	a, descA = must2(r.a.ctx.Export())
	b, descB = must2(r.b.ctx.Export())
	return a, b, descA, descB
}

// fill puts a pattern into memory.
func fill(p []byte, seed byte) {
	for i := range p {
		p[i] = byte(i*7) + byte(i>>8) + seed
	}
}

// outcome counts how tasks of type T ended, and keeps them.
// anyTask is a task or a receive.
type anyTask interface {
	Submit(...pe.SubmitFlags) error
	TrySubmit(...pe.SubmitFlags) error
	Free() error
	InFlight() bool
	Operation() rdma.Operation
	Connection() *rdma.Connection
	UserData() any
	SetUserData(v any)
}

// submitEach submits tasks and receives.
func submitEach(t *testing.T, tasks []anyTask) {
	t.Helper()
	for _, task := range tasks {
		require.NoError(t, task.Submit())
	}
}

func freeEach(t *testing.T, tasks []anyTask) {
	t.Helper()
	for _, task := range tasks {
		require.NoError(t, task.Free())
	}
}

// withResult has the original value of an atomic go to a buffer.
func withResult(task *rdma.Task, result *bufinv.Buf) *rdma.Task {
	if err := task.SetResult(result); err != nil {
		panic(err)
	}
	return task
}

type outcome[T anyTask] struct {
	done   []T
	failed []T
	errs   []error
	then   func(T) // runs in the callback
}

func (o *outcome[T]) ok(t T) {
	o.done = append(o.done, t)
	if o.then != nil {
		o.then(t)
	}
}

func (o *outcome[T]) bad(t T, err error) {
	o.failed = append(o.failed, t)
	o.errs = append(o.errs, err)
	if o.then != nil {
		o.then(t)
	}
}

func (o *outcome[T]) count() int { return len(o.done) + len(o.failed) }

// must is for set-up that cannot fail.
// anyPool makes a pool whose tasks have functions of their own.
func anyPool[P any](c interface {
	Pool(n int, done func(*rdma.Task), failed func(*rdma.Task, error)) (*P, error)
}) *P {
	return must(c.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]))
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}

// same compares bytes without printing megabytes of them.
func same(t *testing.T, want, got []byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if want[i] != got[i] {
			require.Failf(t, "bytes differ", "the first at %d: %#x, not %#x", i, got[i], want[i])
		}
	}
}

func counter(t *testing.T, d *soft.Device, name string) uint64 {
	t.Helper()
	for _, c := range must(d.Counters()) {
		if c.Name == name {
			return c.Value
		}
	}
	require.Fail(t, "no counter "+name)
	return 0
}
