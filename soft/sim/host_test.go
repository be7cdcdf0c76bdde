package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// server counts messages, and keeps what its latest start had.
type server struct {
	host     *sim.Host
	messages int
	failed   []error  // of connections
	qpns     []uint32 // of connections
	rkeys    []uint32 // of starts
	returned []error  // of Engine.Run
	after    []error  // of calls on the device after that
}

func newServer(s *sim.Sim) *server {
	x := &server{host: s.Host("server")}
	x.host.Run(x.run)
	return x
}

func (x *server) addr() string { return x.host.Addr().String() + ":7471" }

func (x *server) run(ctx context.Context, dev verbs.Device) error {
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 8})
	if err != nil {
		return err
	}
	mem, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	rkey, err := mem.ExportKey(r.PD())
	if err != nil {
		return err
	}
	x.rkeys = append(x.rkeys, rkey)
	r.OnConnection(func(c *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			x.qpns = append(x.qpns, c.QPN())
		case rdma.Failed:
			x.failed = append(x.failed, err)
			_ = c.Close()
		}
	})
	r.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			_, err := r.Listen(":7471", rdma.ListenConfig{})
			r.Fail(err)
		}
	})
	err = errors.Join(r.Receive(8, 8, func(*rdma.Message) { x.messages++ }), r.Start())
	if err == nil {
		err = engine.Run(ctx)
	}
	x.returned = append(x.returned, err)
	if errors.Is(err, sim.ErrCrashed) {
		_, inMap := mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
		_, inDomain := dev.AllocPD()
		x.after = append(x.after, inMap, inDomain)
	}
	return errors.Join(err, r.Close(), mem.Close(), engine.Close())
}

// sender sends messages, and connects again when that fails.
type sender struct {
	host   *sim.Host
	sent   int
	failed []error
}

func newSender(s *sim.Sim, name, addr string, every time.Duration) *sender {
	x := &sender{host: s.Host(name)}
	x.host.Run(func(ctx context.Context, dev verbs.Device) error { return x.run(ctx, dev, addr, every) })
	return x
}

func (x *sender) run(ctx context.Context, dev verbs.Device, addr string, every time.Duration) error {
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 8})
	if err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() { over <- await.Run(ctx, engine) }()
	err = await.Start(ctx, r)
	for err == nil {
		var conn *rdma.Connection
		if conn, err = await.Dial(ctx, r, addr, rdma.DialConfig{Timeout: rdma.Forever}); err != nil {
			break
		}
		for err = nil; err == nil; {
			x.host.Sleep(every)
			if err = await.SendImm(ctx, conn, nil, 1); err == nil {
				x.sent++
			}
		}
		x.failed = append(x.failed, err)
		err = await.Func(ctx, engine, conn.Close)
	}
	return errors.Join(err, <-over, r.Close(), engine.Close())
}

// A crashed host is silent, its calls fail, and its program returns. Peers notice; after the
// restart they connect to a program with other numbers and keys.
func TestCrash(t *testing.T) {
	sim.Check(t, 10, func(s *sim.Sim) {
		x := newServer(s)
		busy := newSender(s, "busy", x.addr(), 10*time.Millisecond)
		s.RunUntil(func() bool { return busy.sent >= 10 }, time.Second)
		require.Empty(s, x.returned)
		x.host.Crash()
		require.True(s, x.host.Crashed())
		messages := x.messages
		s.RunUntil(func() bool { return len(busy.failed) > 0 }, 10*time.Second)
		require.ErrorIs(s, busy.failed[0], rdma.ErrRetryExceeded)
		require.Equal(s, messages, x.messages)
		require.Len(s, x.returned, 1)
		require.Len(s, x.after, 2)
		for _, err := range append(x.returned, x.after...) {
			require.ErrorIs(s, err, sim.ErrCrashed, "%v %v", x.returned, x.after)
		}
		s.Run(time.Second)
		x.host.Restart()
		s.RunUntil(func() bool { return x.messages >= messages+10 }, time.Minute)
		require.False(s, x.host.Crashed())
		require.Equal(s, 2, x.host.Starts())
		require.Len(s, x.rkeys, 2)
		require.NotEqual(s, x.rkeys[0], x.rkeys[1])
		require.Len(s, x.qpns, 2)
		require.NotEqual(s, x.qpns[0], x.qpns[1])
		x.host.Restart() // it runs
		s.Run(time.Second)
		require.Equal(s, 2, x.host.Starts())
	})
}

// A peer that sends nothing notices a crash by its keepalive.
func TestCrashIsNoticedWhileIdle(t *testing.T) {
	sim.Check(t, 10, func(s *sim.Sim) {
		x := newServer(s)
		idle := newSender(s, "idle", x.addr(), 5*time.Minute)
		s.RunUntil(func() bool { return len(x.qpns) == 1 }, time.Second)
		s.Run(time.Duration(s.Rand().Int64N(int64(5 * time.Second))))
		idle.host.Crash()
		s.RunUntil(func() bool { return len(x.failed) == 1 }, 10*time.Second)
		require.ErrorIs(s, x.failed[0], rdma.ErrRetryExceeded)
	})
}

// A host may crash at any moment, also before its program has begun, and be restarted before its
// program has returned.
func TestCrashAtAnyMoment(t *testing.T) {
	sim.Check(t, 20, func(s *sim.Sim) {
		x := newServer(s)
		newSender(s, "a", x.addr(), time.Microsecond)
		newSender(s, "b", x.addr(), 3*time.Microsecond)
		for range 20 {
			h := []*sim.Host{x.host, s.Host("a"), s.Host("b")}[s.Rand().IntN(3)]
			s.Run(time.Duration(s.Rand().ExpFloat64() * float64(20*time.Microsecond)))
			h.Crash()
			s.Run(time.Duration(s.Rand().IntN(2)*s.Rand().IntN(20)) * time.Microsecond)
			h.Restart()
		}
		messages := x.messages
		s.RunUntil(func() bool { return x.messages > messages+10 }, time.Minute)
	})
}

// A paused host neither answers nor runs timers. After a short pause all goes on as if nothing
// had been; after a long one, peers have given up.
func TestPause(t *testing.T) {
	for _, pause := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			sim.Check(t, 5, func(s *sim.Sim) {
				x := newServer(s)
				c := newSender(s, "client", x.addr(), 10*time.Millisecond)
				ticks := 0
				s.Host("ticker").Run(func(ctx context.Context, _ verbs.Device) error {
					for ctx.Err() == nil {
						s.Host("ticker").Sleep(100 * time.Millisecond)
						ticks++
					}
					return nil
				})
				s.Run(time.Second)
				x.host.Pause()
				s.Host("ticker").Pause()
				messages, sent, ticked, now := x.messages, c.sent, ticks, x.host.Now()
				s.Run(pause)
				require.Equal(s, messages, x.messages)
				require.LessOrEqual(s, c.sent, sent+1) // its acknowledgement was on its way
				require.Equal(s, ticked, ticks)
				require.Equal(s, pause, x.host.Now().Sub(now))
				x.host.Resume()
				s.Host("ticker").Resume()
				s.RunUntil(func() bool { return x.messages > messages+10 && ticks > ticked+10 }, time.Minute)
				if pause > 10*time.Second {
					require.ErrorIs(s, c.failed[0], rdma.ErrRetryExceeded)
				} else {
					require.Empty(s, c.failed)
				}
			})
		})
	}
}

// Nothing that sleeps keeps a crashed host from its restart, or the test from its end.
func TestSleepEndsWithTheProgram(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		h := s.Host("sleeper")
		h.Run(func(ctx context.Context, _ verbs.Device) error {
			for ctx.Err() == nil {
				h.Sleep(time.Hour)
			}
			return nil
		})
		s.Run(time.Second)
		h.Crash()
		h.Restart()
		s.Run(time.Second)
		require.Equal(s, 2, h.Starts())
	})
}

// A paused host that crashes is restarted without being resumed.
func TestCrashOfPausedHost(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		x := newServer(s)
		newSender(s, "client", x.addr(), 10*time.Millisecond)
		s.Run(time.Second)
		x.host.Pause()
		s.Run(time.Second)
		x.host.Crash()
		s.Run(time.Second)
		x.host.Restart()
		messages := x.messages
		s.RunUntil(func() bool { return x.messages > messages }, time.Minute)
	})
}

// A cut in either direction ends the connection, and Heal lets the next one be made.
func TestCut(t *testing.T) {
	sim.Check(t, 10, func(s *sim.Sim) {
		x := newServer(s)
		c := newSender(s, "client", x.addr(), 100*time.Millisecond)
		other := newSender(s, "other", x.addr(), 100*time.Millisecond)
		cuts := []func(){
			func() { s.Cut(x.host, c.host) },
			func() { s.Cut(c.host, x.host) },
			func() { s.Partition([]*sim.Host{c.host}, []*sim.Host{x.host, other.host}) },
		}
		for i, cut := range cuts {
			s.Run(time.Second)
			require.Len(s, c.failed, i)
			cut()
			s.RunUntil(func() bool { return len(c.failed) == i+1 }, 10*time.Second)
			require.ErrorIs(s, c.failed[i], rdma.ErrRetryExceeded)
			sent := c.sent
			s.Run(20 * time.Second)
			require.Equal(s, sent, c.sent)
			s.Heal()
			s.RunUntil(func() bool { return c.sent > sent }, time.Minute)
		}
		require.Empty(s, other.failed)
	})
}

// A device that has received nothing yet repeats what was lost.
func TestFirstPacketIsLost(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		x := newServer(s)
		c := newSender(s, "client", x.addr(), time.Millisecond)
		s.Cut(c.host, x.host)
		s.After(time.Second, s.Heal)
		s.RunUntil(func() bool { return c.sent > 0 }, 10*time.Second)
	})
}

// The clock of a host decides when its timers fire.
func TestClockRate(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		fast := s.AddHost(sim.HostConfig{Name: "fast", ClockRate: 4})
		var slept, rested time.Duration
		fast.Run(func(context.Context, verbs.Device) error {
			fast.Sleep(time.Second)
			slept = s.Now()
			fast.SetClockRate(0.5)
			fast.Sleep(time.Second)
			rested = s.Now() - slept
			return nil
		})
		s.RunUntil(func() bool { return rested > 0 }, time.Minute)
		require.InDelta(s, 250*time.Millisecond, slept, 10)
		require.InDelta(s, 2*time.Second, rested, 10)
	})
}

// The keepalive of a host whose clock is fast comes sooner, and it gives up sooner.
func TestClockRateOfConnections(t *testing.T) {
	notice := func(rate float64) (after time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := sim.New(t, 1)
			x := newServer(s)
			idle := newSender(s, "idle", x.addr(), 5*time.Minute)
			s.RunUntil(func() bool { return len(x.qpns) == 1 }, time.Second)
			x.host.SetClockRate(rate)
			idle.host.Crash()
			began := s.Now()
			s.RunUntil(func() bool { return len(x.failed) == 1 }, time.Hour)
			after = s.Now() - began
		})
		return after
	}
	assert.Less(t, notice(10), notice(1))
	assert.Less(t, notice(1), notice(0.1))
}

// fakeT takes the place of a test that fails.
type fakeT struct {
	testing.TB
	mu       sync.Mutex
	output   strings.Builder
	failed   bool
	cleanups []func()
}

func (t *fakeT) Helper()          {}
func (t *fakeT) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *fakeT) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(&t.output, format+"\n", args...)
}

func (t *fakeT) Errorf(format string, args ...any) {
	t.Logf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

func (t *fakeT) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *fakeT) Fail()           { t.Errorf("Fail") }
func (t *fakeT) Log(args ...any) { t.Logf("%s", fmt.Sprint(args...)) }

func (t *fakeT) FailNow() {
	t.Errorf("FailNow")
	runtime.Goexit()
}

func (t *fakeT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// failure runs a simulation with seed 77 that fails, and returns its output.
func failure(t *testing.T, test func(s *sim.Sim)) string {
	fake := &fakeT{TB: t}
	synctest.Test(t, func(*testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range fake.cleanups {
					f()
				}
			}()
			test(sim.New(fake, 77))
			assert.Fail(t, "the test goes on")
		}()
		<-done
	})
	require.True(t, fake.failed)
	return fake.output.String()
}

func TestProgramReturnsAnError(t *testing.T) {
	out := failure(t, func(s *sim.Sim) {
		newServer(s)
		s.Host("bad").Run(func(context.Context, verbs.Device) error { return errors.New("no more ideas") })
		s.Run(time.Minute)
	})
	require.Contains(t, out, "sim: host bad, seed 77: its program returned: no more ideas")
}

func TestProgramLeavesObjectsOpen(t *testing.T) {
	out := failure(t, func(s *sim.Sim) {
		s.Host("careless").Run(func(_ context.Context, dev verbs.Device) error {
			_, err := dev.AllocPD()
			return err
		})
		s.Run(time.Minute)
	})
	require.Contains(t, out, "sim: host careless, seed 77: its program left objects open: ")
	require.Contains(t, out, "in use")
}

// So does one that leaves them open at the end of the test. Others still have the time to return.
func TestProgramLeavesObjectsOpenAtTheEnd(t *testing.T) {
	slowEnded := false
	out := failure(t, func(s *sim.Sim) {
		s.Host("careless").Run(func(ctx context.Context, dev verbs.Device) error {
			_, err := dev.AllocPD()
			<-ctx.Done()
			return err
		})
		s.Host("slow").Run(func(ctx context.Context, _ verbs.Device) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			slowEnded = true
			return nil
		})
		s.Run(time.Minute)
		s.FailNow()
	})
	require.Contains(t, out, "sim: host careless, seed 77: its program left objects open: ")
	require.NotContains(t, out, "programs do not return")
	require.True(t, slowEnded)
}

// A program that ends the test, as require does, ends it at once.
func TestProgramEndsTheTest(t *testing.T) {
	out := failure(t, func(s *sim.Sim) {
		x := newServer(s)
		s.Host("strict").Run(func(context.Context, verbs.Device) error {
			require.Equal(s, 1, x.messages)
			return nil
		})
		s.Run(time.Hour)
	})
	require.Contains(t, out, "Not equal")
	require.NotContains(t, out, "programs do not return")
}

// So does a goroutine of a program, and the program's context ends with the program.
func TestGoroutineEndsTheTest(t *testing.T) {
	for name, start := range map[string]func(h *sim.Host, f func()){
		"Run": func(h *sim.Host, f func()) { f() },
		"Go":  func(h *sim.Host, f func()) { h.Go(f) },
	} {
		t.Run(name, func(t *testing.T) {
			out := failure(t, func(s *sim.Sim) {
				h := s.Host("strict")
				h.Run(func(ctx context.Context, _ verbs.Device) error {
					go func() { <-ctx.Done() }()
					start(h, func() {
						h.Sleep(time.Second)
						require.Equal(s, time.Duration(0), s.Now(), "too late")
					})
					<-ctx.Done()
					return nil
				})
				s.Run(time.Hour)
			})
			require.Contains(t, out, "too late")
			require.NotContains(t, out, "the test goes on")
		})
	}
}

// Functions of the test that the simulation calls can end the test too.
func TestConditionEndsTheTest(t *testing.T) {
	for name, test := range map[string]func(s *sim.Sim){
		"RunUntil": func(s *sim.Sim) {
			s.RunUntil(func() bool { require.Zero(s, s.Now(), "too late"); return false }, time.Hour)
		},
		"After": func(s *sim.Sim) {
			s.After(time.Second, func() { s.Fatalf("%s", "too late") })
			s.Run(time.Hour)
		},
		"several": func(s *sim.Sim) {
			for range 3 {
				s.After(time.Second, func() { require.Fail(s, "too late") })
			}
			s.RunUntil(func() bool { require.Less(s, s.Now(), time.Second); return false }, time.Hour)
		},
		"the function ends its goroutine": func(s *sim.Sim) {
			s.After(time.Second, func() { s.Errorf("too late"); runtime.Goexit() })
			s.Run(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, failure(t, func(s *sim.Sim) {
				newServer(s)
				test(s)
			}), "too late")
		})
	}
}

// Whatever can make the test fail can skip it too.
func TestSkip(t *testing.T) {
	for name, test := range map[string]func(s *sim.Sim){
		"test":     func(s *sim.Sim) { s.Skip("not today") },
		"After":    func(s *sim.Sim) { s.After(time.Second, func() { s.Skipf("not %s", "today") }) },
		"SkipNow":  func(s *sim.Sim) { s.After(time.Second, s.SkipNow) },
		"RunUntil": func(s *sim.Sim) { s.RunUntil(func() bool { s.SkipNow(); return false }, time.Hour) },
		"program": func(s *sim.Sim) {
			s.Host("lazy").Run(func(context.Context, verbs.Device) error { s.Skip("not today"); return nil })
		},
		"Go": func(s *sim.Sim) { s.Host("lazy").Go(func() { s.Skip("not today") }) },
	} {
		t.Run(name, func(t *testing.T) {
			var skipped *testing.T
			synctest.Test(t, func(t *testing.T) {
				skipped = t
				s := sim.New(t, 77)
				newServer(s)
				test(s)
				s.Run(time.Hour)
				s.Errorf("the test goes on")
			})
			require.True(t, skipped.Skipped())
			require.False(t, skipped.Failed())
		})
	}
}

// A condition that never holds ends the test when its time is over, without waiting for it, and
// the output says what each host waits for.
func TestRunUntilNever(t *testing.T) {
	out := failure(t, func(s *sim.Sim) {
		x := newServer(s)
		newSender(s, "client", x.addr(), time.Hour)
		s.Host("stopped").Run(func(context.Context, verbs.Device) error { return nil })
		s.Host("gone").Run(x.run)
		s.Host("empty")
		s.Run(time.Second)
		s.Host("gone").Crash()
		s.Host("standing").Run(func(ctx context.Context, _ verbs.Device) error { return nil })
		s.Host("standing").Pause()
		s.RunUntil(func() bool { return false }, 10*time.Minute)
	})
	for _, want := range []string{
		"the condition does not hold after 10m1s of simulated time:\n",
		"  host server: its program runs\n    context \"rdma\", Running, 0 tasks in flight, 0 allocated\n",
		"  host client: its program runs\n    context \"rdma\", Running, ",
		"  host stopped: its program has returned\n",
		"  host gone: crashed\n",
		"  host empty: it has no program\n",
		"  host standing: paused; 1 events wait\n",
	} {
		require.Contains(t, out, want)
	}
}

// A panic of a program names its host and the seed. It ends the test binary.
func TestProgramPanics(t *testing.T) {
	out, err := inChild(t, func() {
		sim.Check(t, 5, func(s *sim.Sim) {
			s.Host("mad").Run(func(context.Context, verbs.Device) error {
				if s.Seed() == 4 {
					panic("out of my mind")
				}
				return nil
			})
			s.Run(time.Second)
		})
	})
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Contains(t, out, "sim: panic on host mad, seed 4: out of my mind")
}

// The test of a seed that is skipped counts as skipped.
func TestSkipSeed(t *testing.T) {
	out, err := inChild(t, func() {
		sim.Check(t, 3, func(s *sim.Sim) {
			if s.Seed() == 3 {
				s.Skip()
			}
		})
	})
	require.NoError(t, err)
	require.Contains(t, out, "--- PASS: TestSkipSeed/seed_2")
	require.Contains(t, out, "--- SKIP: TestSkipSeed/seed_3")
}

func TestCheckMisses(t *testing.T) {
	out, err := inChild(t, func() {
		sim.Check(t, 200, func(s *sim.Sim) {
			s.Sometimes(s.Seed() == 100, "one seed")
			s.Sometimes(s.Seed() > 200, "no seed")
		})
	})
	require.Error(t, err)
	assert.Contains(t, out, "sim: never in 200 seeds: no seed")
}

// inChild runs the rest of a test in another process, and returns its output. In that process
// it calls f, and does not return.
func inChild(t *testing.T, f func()) (out string, err error) {
	const variable = "VERBENA_SIM_CHILD"
	if os.Getenv(variable) != "" {
		f()
		t.SkipNow()
	}
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self, "-test.v", "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), variable+"=1")
	b, err := child.CombinedOutput()
	return string(b), err
}
