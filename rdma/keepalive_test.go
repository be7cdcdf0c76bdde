//go:build unix

package rdma_test

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/process"
	"github.com/verbena-rdma/verbena/verbs"
)

// noPermissions permits peers nothing: what is local does not count, and zero stands for
// everything in these tests.
const noPermissions = mmap.LocalReadWrite

const idleReceives = 4

// TestIdleProcess is a program that connects, receives, and does nothing else. Tests
// of keepalives start it and kill it.
func TestIdleProcess(t *testing.T) {
	on := os.Getenv("VERBENA_IDLE")
	if on == "" {
		t.Skip("a part of the tests of keepalives")
	}
	engine := pe.New(pe.Config{})
	ctx := must(rdma.New(clientDevices[on](t), rdma.Config{Engine: engine, Permissions: noPermissions, EndWithLastConnection: true}))
	pool := must(ctx.ReceivePool(idleReceives, func(task *rdma.ReceiveTask) { require.NoError(t, task.Submit()) },
		func(task *rdma.ReceiveTask, err error) { require.NoError(t, task.Free()) }))
	ctx.OnStateChange(func(_, next pe.State) {
		for i := 0; next == pe.Running && i < idleReceives; i++ {
			require.NoError(t, must(pool.Alloc(nil)).Submit())
		}
	})
	require.NoError(t, ctx.Start())
	conn, desc := must2(ctx.Export())
	fmt.Printf("%x\n", desc)
	require.NoError(t, conn.Connect(hexLine(t, bufio.NewReader(os.Stdin))))
	require.NoError(t, engine.Run(t.Context()))
}

// startIdle connects a side to a process of its own.
func (r *rig) startIdle(s *side, on string) *process.Process {
	t := r.t
	p := startTest(t, "^TestIdleProcess$", "VERBENA_IDLE="+on)
	lines := bufio.NewReader(p.Out)
	peer := hexLine(t, lines)
	go func() { _, _ = lines.WriteTo(os.Stderr) }() // what it fails of
	require.NoError(t, s.ctx.Start())
	conn, desc := must2(s.ctx.Export())
	s.conns = append(s.conns, conn)
	must(fmt.Fprintf(p.In, "%x\n", desc))
	require.NoError(t, conn.Connect(peer))
	return p
}

// startTest starts a test of this package as a process of its own, with pipes.
func startTest(t *testing.T, name string, env ...string) *process.Process {
	return process.Start(t, process.Program{Args: []string{os.Args[0], "-test.run", name, "-test.timeout", "0"}, Env: env, In: true, Out: true})
}

// idleCase is how an end may have nothing at the device when its peer dies: prepare
// makes pools, and returns what is done before.
type idleCase struct {
	name    string
	prepare func(r *rig, s *side) (before func())
}

var idleCases = []idleCase{
	{"nothing but a connection", func(*rig, *side) func() { return func() {} }},
	{"receives posted", func(r *rig, s *side) func() {
		pool := must(s.ctx.ReceivePool(idleReceives, func(*rdma.ReceiveTask) { assert.Fail(r.t, "a message") },
			func(task *rdma.ReceiveTask, err error) {
				assert.ErrorIs(r.t, err, rdma.ErrFlushed)
				assert.NoError(r.t, task.Free())
			}))
		return func() {
			for range idleReceives {
				require.NoError(r.t, must(pool.Alloc(nil)).Submit())
			}
		}
	}},
	{"every request acknowledged", func(r *rig, s *side) func() {
		var sends outcome[*rdma.Task]
		sends.then = func(task *rdma.Task) { assert.NoError(r.t, task.Free()) }
		pool := must(s.ctx.Pool(10, sends.ok, sends.bad))
		return func() {
			for range 10 {
				require.NoError(r.t, must(pool.Send(s.conns[0], nil)).Submit())
			}
			r.until("all have been acknowledged", func() bool { return sends.count() == 10 })
			require.Empty(r.t, sends.errs)
		}
	}},
}

// testPeerDiesIdle has the peer of an idle connection die, with nothing permitted at either
// end.
func testPeerDiesIdle(t *testing.T, own func(*testing.T) verbs.Device, on string, by syscall.Signal, keepalive time.Duration, how idleCase) {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	s := r.side(own(t), rdma.Config{Permissions: noPermissions, Keepalive: keepalive})
	before := how.prepare(r, s)
	reports := watch(s)
	victim := r.startIdle(s, on)
	r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
	before()
	victim.Send(by)
	r.noticed(s, reports)
}

// watch notes all reports on the connections of a side.
func watch(s *side) *[]string {
	var events []string
	var last error
	s.record(&events, &last)
	return &events
}

// noticed waits until a side has noticed that its peer is dead.
func (r *rig) noticed(s *side, reports *[]string) {
	r.t.Helper()
	r.until("it has noticed", func() bool { return s.conns[0].Err() != nil })
	require.ErrorIs(r.t, s.conns[0].Err(), rdma.ErrRetryExceeded)
	r.until("the context has ended", func() bool { return s.ctx.State() == pe.Idle })
	require.ErrorIs(r.t, s.ctx.Err(), rdma.ErrRetryExceeded)
	require.Equal(r.t, []string{"Connecting", "Ready", "Failed", "Closed"}, *reports)
}

// If the peer's process is killed, or stopped, while the connection is idle, this end notices.
// (TestKilledOnThisMachine tests shared memory, and TestKeepaliveNoticesTheDead what else
// matters.)
func TestKeepaliveNoticesDeadProcesses(t *testing.T) {
	for name, by := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPeerDiesIdle(t, openByUDP, "soft", by, 20*time.Millisecond, idleCases[1])
		})
	}
}

// idleSides connects two sides: b posts receives and does nothing else.
func idleSides(s *sim.Sim, cfg rdma.Config, how idleCase) (r *rig, reports *[]string) {
	r = newSimRig(s, cfg, rdma.Config{Permissions: noPermissions})
	before := how.prepare(r, r.a)
	reports = watch(r.a)
	pool := must(r.b.ctx.ReceivePool(idleReceives, func(task *rdma.ReceiveTask) { require.NoError(s, task.Submit()) },
		func(task *rdma.ReceiveTask, _ error) { require.NoError(s, task.Free()) }))
	r.connect(1)
	for range idleReceives {
		require.NoError(s, must(pool.Alloc(nil)).Submit())
	}
	before()
	return r, reports
}

// If the peer's host crashes, or stands still, while the connection is idle, this end notices,
// whatever it has done before. Which of the two ends is the active one is random.
func TestKeepaliveNoticesTheDead(t *testing.T) {
	for _, how := range idleCases {
		for name, die := range map[string]func(*sim.Host){"crashes": (*sim.Host).Crash, "stands still": (*sim.Host).Pause} {
			for _, keepalive := range []time.Duration{0, 200 * time.Millisecond} {
				runSimulated(t, fmt.Sprintf("%s/%s, %v", how.name, name, keepalive), 2, func(t *testing.T, s *sim.Sim) {
					r, reports := idleSides(s, rdma.Config{Permissions: noPermissions, Keepalive: keepalive}, how)
					die(s.Host("b"))
					r.noticed(r.a, reports)
					s.Host("b").Resume()
				})
			}
		}
	}
}

// Without keepalives, an idle connection sends nothing, and does not notice a dead peer.
func TestKeepaliveOff(t *testing.T) { sim.Check(t, 3, testKeepaliveOff) }

func testKeepaliveOff(s *sim.Sim) {
	r, _ := idleSides(s, rdma.Config{Keepalive: rdma.None}, idleCases[0])
	s.Host("b").Crash()
	said := s.Packets()
	r.drive(time.Hour)
	assert.Equal(s, rdma.Ready, r.a.conns[0].State())
	assert.Equal(s, said, s.Packets(), "packets of an idle connection")
}

// idleAndAlive leaves a connection idle for many keepalives; it neither fails nor
// takes a receive, and works afterwards.
func idleAndAlive(t *testing.T, onA, onB verbs.Device, idle func(r *rig)) {
	cfg := rdma.Config{Permissions: noPermissions, Keepalive: 2 * time.Millisecond}
	r := newRigOn(t, onA, onB, cfg, cfg)
	var send [2]func()
	var arrived, sent, failed [2]int
	for i, s := range []*side{r.a, r.b} {
		free := func(task interface{ Free() error }, err error) {
			if s.ctx.State() == pe.Running {
				failed[i]++
			}
			assert.NoError(t, task.Free())
		}
		sends := must(s.ctx.Pool(1, func(task *rdma.Task) {
			sent[i]++
			assert.NoError(t, task.Free())
		}, func(task *rdma.Task, err error) { free(task, err) }))
		receives := must(s.ctx.ReceivePool(1, func(task *rdma.ReceiveTask) {
			arrived[i]++
			assert.NoError(t, task.Free())
		}, func(task *rdma.ReceiveTask, err error) { free(task, err) }))
		send[i] = func() { require.NoError(t, must(sends.Send(s.conns[0], nil)).Submit()) }
		s.ctx.OnStateChange(func(_, next pe.State) {
			if next == pe.Running { // the only receive: a keepalive must not take it
				require.NoError(t, must(receives.Alloc(nil)).Submit())
			}
		})
	}
	r.connect(1)
	idle(r)
	for _, s := range []*side{r.a, r.b} {
		require.Equal(t, rdma.Ready, s.conns[0].State(), "%v", s.conns[0].Err())
		require.Equal(t, pe.Running, s.ctx.State())
	}
	require.Equal(t, [2]int{}, arrived)
	send[0]()
	send[1]()
	r.until("it works both ways", func() bool { return arrived == [2]int{1, 1} && sent == [2]int{1, 1} })
	require.Equal(t, [2]int{}, failed)
}

// A connection that is idle and alive never fails.
func TestKeepaliveOfTheLiving(t *testing.T) {
	for _, loss := range []float64{0, 0.1} {
		runSimulated(t, fmt.Sprint(loss), 4, func(t *testing.T, s *sim.Sim) {
			idleAndAlive(t, s.Host("a").Device(), s.Host("b").Device(), func(r *rig) {
				s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: loss})
				before := s.Packets()
				r.drive(time.Second)
				require.Greater(t, s.Packets(), before+800, "keepalives and their acknowledgements")
			})
		})
	}
}
