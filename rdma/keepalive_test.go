//go:build unix

package rdma_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
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
func (r *rig) startIdle(s *side, on string) *exec.Cmd {
	t := r.t
	cmd := exec.Command(os.Args[0], "-test.run", "^TestIdleProcess$", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), "VERBENA_IDLE="+on)
	cmd.Stderr = os.Stderr
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	peer := hexLine(t, lines)
	go func() { _, _ = lines.WriteTo(os.Stderr) }() // what it fails of
	require.NoError(t, s.ctx.Start())
	conn, desc := must2(s.ctx.Export())
	s.conns = append(s.conns, conn)
	must(fmt.Fprintf(in, "%x\n", desc))
	require.NoError(t, conn.Connect(peer))
	return cmd
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
	var reasons []error
	s.ctx.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		s.reported = append(s.reported, state.String())
		if state == rdma.Failed {
			reasons = append(reasons, err)
		}
	})
	before := how.prepare(r, s)
	victim := r.startIdle(s, on)
	r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
	before()
	require.NoError(t, victim.Process.Signal(by))
	start := time.Now()
	r.until("somebody noticed", func() bool { return len(reasons) > 0 })
	t.Logf("noticed after %v", time.Since(start).Round(time.Millisecond))
	require.ErrorIs(t, reasons[0], rdma.ErrRetryExceeded)
	require.ErrorIs(t, s.conns[0].Err(), rdma.ErrRetryExceeded)
	r.until("the context has ended", func() bool { return s.ctx.State() == pe.Idle })
	require.ErrorIs(t, s.ctx.Err(), rdma.ErrRetryExceeded)
	require.Equal(t, []string{"Connecting", "Ready", "Failed", "Closed"}, s.reported)
}

// If the peer's process is killed, or stopped, while the connection is idle, this end notices,
// whatever it has done before. Which of the two ends is the active one is random.
// (TestKilledOnThisMachine tests shared memory.)
func TestKeepaliveNoticesTheDead(t *testing.T) {
	for _, how := range idleCases {
		for _, c := range []struct {
			name      string
			by        syscall.Signal
			keepalive time.Duration
		}{
			{"killed", syscall.SIGKILL, 20 * time.Millisecond},
			{"killed, again", syscall.SIGKILL, 20 * time.Millisecond},
			{"killed, default", syscall.SIGKILL, 0},
			{"stopped", syscall.SIGSTOP, 20 * time.Millisecond},
		} {
			t.Run(how.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				testPeerDiesIdle(t, openByUDP, "soft", c.by, c.keepalive, how)
			})
		}
	}
}

// Without keepalives, an idle connection sends nothing, and does not notice a dead peer.
func TestKeepaliveOff(t *testing.T) {
	r := &rig{t: t, engine: pe.New(pe.Config{})}
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	s := r.side(openByUDP(t), rdma.Config{Keepalive: rdma.None})
	victim := r.startIdle(s, "soft")
	r.until("the context runs", func() bool { return s.ctx.State() == pe.Running })
	require.NoError(t, victim.Process.Kill())
	_ = victim.Wait()
	start, said := time.Now(), sent(t, s.dev)
	r.until("it could have noticed", func() bool { return time.Since(start) > time.Second })
	assert.Equal(t, rdma.Ready, s.conns[0].State())
	assert.Equal(t, said, sent(t, s.dev), "packets of an idle connection")
}

func sent(t *testing.T, d verbs.Device) uint64 { return counter(t, d.(*soft.Device), "sent_pkts") }

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
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			t.Parallel()
			idleAndAlive(t, openSoft(t), openSoft(t), func(r *rig) {
				for _, s := range []*side{r.a, r.b} {
					require.NoError(t, s.dev.(*soft.Device).SetFaults(soft.Faults{Loss: loss, Seed: 5}))
				}
				first := [2]uint64{sent(t, r.a.dev), sent(t, r.b.dev)}
				r.until("many keepalives have been said", func() bool {
					return sent(t, r.a.dev) > first[0]+200 && sent(t, r.b.dev) > first[1]+200
				})
			})
		})
	}
}
