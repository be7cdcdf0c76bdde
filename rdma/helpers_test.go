package rdma_test

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// gate holds up calls until it is opened.
type gate struct {
	t      *testing.T
	once   sync.Once
	opened chan struct{}
}

// newGate makes one, which is open when the test ends.
func newGate(t *testing.T) *gate {
	g := &gate{t: t, opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass returns when the gate is open.
func (g *gate) pass() {
	select {
	case <-g.opened:
	case <-time.After(5 * time.Minute):
		assert.Fail(g.t, "the engine waits for a call that blocks")
	}
}

// While one context waits for its connection manager to close, the engine drives the others.
func TestStopDoesNotHoldUpTheEngine(t *testing.T) {
	dev, far := openFaulty(t), openSoft(t)
	closing := newGate(t)
	dev.Set(func(h *faultydevice.Hooks) {
		h.CloseCM = func(cm verbs.CM) error {
			closing.pass()
			return cm.Close()
		}
	})
	r := newRigOn(t, far, far, rdma.Config{}, rdma.Config{})
	stopping := must(rdma.New(dev, rdma.Config{Engine: r.engine, Name: "stopping"}))
	require.NoError(t, stopping.Start())
	listener := must(stopping.Listen(":0", rdma.ListenConfig{}))
	client := must(rdma.New(far, rdma.Config{Engine: r.engine, Name: "client", EndWithLastConnection: true}))
	require.NoError(t, client.Start())
	conn := must(client.Dial(netip.AddrPortFrom(stopping.GID().GID.Addr(), listener.Addr().Port()).String(), rdma.DialConfig{}))
	r.until("they are connected", func() bool { return conn.State() == rdma.Ready })
	require.NoError(t, stopping.Stop())

	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	r.connect(1)
	r.until("the peer of the context has learned", func() bool { return client.State() == pe.Idle })
	task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
	require.NoError(t, task.Submit())
	r.until("the write is done", func() bool { return writes.count() == 1 })
	require.Empty(t, writes.errs)
	require.NoError(t, task.Free())
	require.Equal(t, pe.Stopping, stopping.State())
	closing.open()
	r.until("the context is Idle", func() bool { return stopping.State() == pe.Idle })
	require.NoError(t, stopping.Err())
	require.NoError(t, stopping.Start(), "it can be started again")
	must(stopping.Listen(":0", rdma.ListenConfig{}))
	for _, c := range []*rdma.Connections{stopping, client} {
		require.NoError(t, c.Close())
	}
}

// submitInOrder submits n numbered writes to a connection of a.
func (r *rig) submitInOrder(pool *rdma.Pool, conn *rdma.Connection, n int) {
	for i := range n {
		task := must(pool.Write(conn, r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
		task.SetUserData(i)
		require.NoError(r.t, task.Submit())
	}
}

// While the kernel looks for one peer, other connections work; a connection that is closed or
// fails meanwhile ends when the kernel has returned.
func TestConnectDoesNotHoldUpTheEngine(t *testing.T) {
	for _, end := range []string{"connects", "is closed", "stops", "times out", "is refused"} {
		runSimulated(t, end, 2, func(t *testing.T, s *sim.Sim) {
			looking := newGate(t)
			cfg := rdma.Config{MaxConnections: 3}
			if end == "times out" {
				cfg.ConnectTimeout = 5 * time.Second
			}
			refuse := end == "is refused"
			var order []int
			var pool *rdma.Pool
			dev := faultydevice.Simulated(s.Host("a"))
			r := newRigOn(t, dev, s.Host("b").Device(), cfg, rdma.Config{MaxConnections: 3})
			pool = must(r.a.ctx.Pool(8, func(task *rdma.Task) {
				order = append(order, task.UserData().(int))
				require.NoError(t, task.Free())
			}, func(task *rdma.Task, err error) {
				assert.NoError(t, err)
				_ = task.Free()
			}))
			r.connect(1)
			dev.Neighbours(func(verbs.AddressAttr) error {
				looking.pass()
				if refuse {
					return faultydevice.ErrBroken
				}
				return nil
			})
			a, b := r.link()
			r.submitInOrder(pool, r.a.conns[0], 8)
			r.until("the other connection works", func() bool { return len(order) == 8 })
			require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, order)
			if end == "times out" {
				r.until("it has failed", func() bool { return a.State() == rdma.Failed })
			} else {
				require.Equal(t, rdma.Connecting, a.State())
			}
			switch end {
			case "is closed":
				require.NoError(t, a.Close())
			case "stops":
				require.NoError(t, r.a.ctx.Stop())
				for range 100 {
					must(r.engine.Progress())
				}
				require.Equal(t, pe.Stopping, r.a.ctx.State())
			case "times out":
				require.NoError(t, a.Close())
			}
			for range 100 {
				must(r.engine.Progress())
			}
			require.LessOrEqual(t, r.a.closed(), map[string]int{"stops": 1}[end], "the kernel has its queue pair")
			s.After(0, looking.open) // while the test waits: the order of two goroutines does not depend on the seed
			switch end {
			case "connects":
				r.until("they are connected", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
				order = nil
				r.submitInOrder(pool, a, 8)
				r.until("it works", func() bool { return len(order) == 8 })
				require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, order)
			case "is refused":
				r.until("it has failed", func() bool { return a.State() == rdma.Failed })
				require.ErrorIs(t, a.Err(), faultydevice.ErrBroken)
				require.ErrorIs(t, a.Err(), rdma.ErrDevice)
			case "stops":
				r.until("the context is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
			default:
				r.until("it is closed", func() bool { return r.a.closed() == 1 })
			}
		})
	}
}

// A peer whose host is down is waited for, until it is up or the time is over.
func TestConnectToAHostThatIsDown(t *testing.T) {
	runSimulated(t, "comes up", 3, func(t *testing.T, s *sim.Sim) { testHostIsDown(t, s, true) })
	runSimulated(t, "stays down", 3, func(t *testing.T, s *sim.Sim) { testHostIsDown(t, s, false) })
}

func testHostIsDown(t *testing.T, s *sim.Sim, up bool) {
	dev := faultydevice.Simulated(s.Host("a"))
	cfg := rdma.Config{}
	if !up {
		cfg.ConnectTimeout = 3 * time.Second
	}
	r := newRigOn(t, dev, s.Host("b").Device(), cfg, rdma.Config{})
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	var attempts atomic.Int32
	dev.Neighbours(func(verbs.AddressAttr) error {
		if attempts.Add(1) > 2 && up {
			return nil
		}
		return faultydevice.ErrDown
	})
	a, b := r.link()
	if up {
		r.until("they are connected", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
		require.EqualValues(t, 3, attempts.Load())
		return
	}
	r.until("it has failed", func() bool { return a.Err() != nil })
	require.ErrorIs(t, a.Err(), rdma.ErrTimeout)
	require.ErrorIs(t, a.Err(), rdma.ErrUnreachable)
	require.Positive(t, attempts.Load())
}

// Connections by address wait for the kernel too, at both ends.
func TestDialWhileTheKernelLooks(t *testing.T) {
	for _, end := range []string{"active", "passive"} {
		t.Run(end, func(t *testing.T) {
			dev, far := openFaulty(t), openSoft(t)
			active, passive := verbs.Device(dev), far
			if end == "passive" {
				active, passive = far, dev
			}
			r := newRigOn(t, active, passive, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
			require.NoError(t, r.a.ctx.Start())
			require.NoError(t, r.b.ctx.Start())
			looking := newGate(t)
			var attempts atomic.Int32
			dev.Neighbours(func(verbs.AddressAttr) error {
				looking.pass()
				if attempts.Add(1) == 1 {
					return faultydevice.ErrDown
				}
				return nil
			})
			var accepted *rdma.Connection
			listener := must(r.b.ctx.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
				accepted = must(q.Accept(rdma.AcceptConfig{}))
			}}))
			conn := must(r.a.ctx.Dial(netip.AddrPortFrom(r.b.ctx.GID().GID.Addr(), listener.Addr().Port()).String(), rdma.DialConfig{}))
			r.until("it is accepted", func() bool { return accepted != nil })
			require.Equal(t, rdma.Connecting, conn.State())
			looking.open()
			r.until("they are connected", func() bool { return conn.State() == rdma.Ready && accepted.State() == rdma.Ready })
			require.EqualValues(t, 2, attempts.Load())
		})
	}
}

// While the kernel looks for one destination of datagrams, those to others go out; those to it
// follow in order, fail if it is down, or are flushed if the context stops.
func TestDatagramsWhileTheKernelLooks(t *testing.T) {
	for _, end := range []string{"found", "down", "refused", "stops"} {
		t.Run(end, func(t *testing.T) {
			const messages = 3
			engine := newEngine(t)
			dev := openFaulty(t)
			a := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{Name: "a", CloseTimeout: rdma.None})
			b, c := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "c"})
			lost := must(b.ctx.EndpointAddr())
			looking := newGate(t)
			var outcome atomic.Pointer[error]
			dev.Neighbours(func(to verbs.AddressAttr) error {
				if to.DGID != lost.GID || to.UDPPort != lost.UDPPort {
					return nil
				}
				looking.pass()
				if err := outcome.Load(); err != nil {
					return *err
				}
				return nil
			})
			toB, toC := must(a.ctx.PeerAt(lost)), must(a.ctx.PeerAt(must(c.ctx.EndpointAddr())))
			texts := []string{"first", "second", "third"}
			send := func(to *rdma.Peer) {
				for i, text := range texts {
					n := copy(a.mem.Bytes()[64*i:], text)
					task := must(a.sends.Send(to, a.bufs.Source(a.mem, 64*i, n)))
					task.SetUserData(text)
					require.NoError(t, task.Submit())
				}
			}
			send(toB)
			send(toC)
			c.until("its messages come", func() bool { return len(c.got) == messages })
			require.Equal(t, texts, c.got)
			a.until("they are sent", func() bool { return len(a.sent.done) == messages })
			require.Empty(t, b.got)
			require.Empty(t, a.sent.failed)
			var want error
			switch end {
			case "down":
				outcome.Store(&faultydevice.ErrDown)
				want = rdma.ErrRetryExceeded
			case "refused":
				outcome.Store(&faultydevice.ErrBroken)
				want = faultydevice.ErrBroken
			case "stops":
				want = rdma.ErrFlushed
				require.NoError(t, a.ctx.Stop())
				a.until("they are back", func() bool { return a.sent.count() == 2*messages })
				for range 100 {
					must(engine.Progress())
				}
				require.Equal(t, pe.Stopping, a.ctx.State(), "the kernel still looks")
			}
			looking.open()
			a.until("all have ended", func() bool { return a.sent.count() == 2*messages })
			if want == nil {
				b.until("its messages come", func() bool { return len(b.got) == messages })
				require.Equal(t, texts, b.got)
				return
			}
			var failed []string
			for i, err := range a.sent.errs {
				require.ErrorIs(t, err, want)
				failed = append(failed, a.sent.failed[i].UserData().(string))
			}
			require.Equal(t, texts, failed)
			if end == "stops" {
				return
			}
			require.Equal(t, end == "down", errors.Is(a.sent.errs[0], rdma.ErrUnreachable))
			outcome.Store(nil)
			send(toB)
			b.until("its messages come, later", func() bool { return len(b.got) == messages })
			require.Equal(t, texts, b.got)
		})
	}
}

// maxBlockingCalls is how many calls that block are made at a time.
const maxBlockingCalls = 16

// The addresses of connections that end before a helper has begun are not looked up.
func TestConnectionsThatEndAreNotLookedFor(t *testing.T) {
	sim.Check(t, 2, testConnectionsThatEndAreNotLookedFor)
}

func testConnectionsThatEndAreNotLookedFor(s *sim.Sim) {
	t := testOf(s)
	const connections = 3 * maxBlockingCalls
	dev := faultydevice.Simulated(s.Host("a"))
	r := newRigOn(t, dev, s.Host("b").Device(), rdma.Config{MaxConnections: connections, CloseTimeout: rdma.None}, rdma.Config{MaxConnections: connections})
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	looking := newGate(t)
	var attempts atomic.Int32
	dev.Neighbours(func(verbs.AddressAttr) error {
		attempts.Add(1)
		looking.pass()
		return faultydevice.ErrDown
	})
	for range connections {
		r.link()
	}
	r.until("the kernel looks", func() bool { return attempts.Load() == maxBlockingCalls })
	require.NoError(t, r.a.ctx.Stop())
	looking.open()
	r.until("the context is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
	require.EqualValues(t, maxBlockingCalls, attempts.Load())
}

// Destinations of datagrams are not looked up when no task can use them any more.
func TestDestinationsAreNotLookedForAtTheEnd(t *testing.T) {
	const destinations = 3 * maxBlockingCalls
	engine, dev := newEngine(t), openFaulty(t)
	a := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{CloseTimeout: rdma.None})
	a.sent.then = func(task *rdma.Task) { assert.NoError(t, task.Free()) }
	looking := newGate(t)
	var attempts atomic.Int32
	dev.Neighbours(func(verbs.AddressAttr) error {
		attempts.Add(1)
		looking.pass()
		return nil
	})
	to := must(a.ctx.EndpointAddr())
	for range destinations {
		to.UDPPort++
		a.send(must(a.ctx.PeerAt(to)), "too late")
	}
	a.until("the kernel looks", func() bool { return attempts.Load() == maxBlockingCalls })
	require.NoError(t, a.ctx.Stop())
	looking.open()
	a.until("the context is Idle", func() bool { return a.ctx.State() == pe.Idle })
	require.EqualValues(t, maxBlockingCalls, attempts.Load())
	require.Len(t, a.sent.errs, destinations)
	for _, err := range a.sent.errs {
		require.ErrorIs(t, err, rdma.ErrFlushed)
	}
}

// Many peers that are down do not delay the connections to others.
func TestPeersThatAreDownLeaveHelpersToOthers(t *testing.T) {
	sim.Check(t, 2, testPeersThatAreDownLeaveHelpersToOthers)
}

func testPeersThatAreDownLeaveHelpersToOthers(s *sim.Sim) {
	t := testOf(s)
	const down = 2 * maxBlockingCalls
	dev := faultydevice.Simulated(s.Host("a"))
	r := newRigOn(t, dev, s.Host("b").Device(), rdma.Config{MaxConnections: down + 1}, rdma.Config{MaxConnections: down})
	up := must(rdma.New(s.Host("up").Device(), rdma.Config{Engine: r.engine}))
	for _, c := range []*rdma.Connections{r.a.ctx, r.b.ctx, up} {
		require.NoError(t, c.Start())
	}
	looking := newGate(t)
	var attempts atomic.Int32
	b := r.b.ctx.GID().GID
	bPort := r.b.ctx.GID().UDPPort
	dev.Neighbours(func(to verbs.AddressAttr) error {
		if to.DGID != b || to.UDPPort != bPort {
			return nil
		}
		if attempts.Add(1) > down {
			looking.pass()
		}
		return faultydevice.ErrDown
	})
	for range down {
		r.link()
	}
	r.until("peers are looked for again", func() bool { return attempts.Load() >= down+maxBlockingCalls/2 })
	r.drive(200 * time.Millisecond) // the others are due too
	require.EqualValues(t, down+maxBlockingCalls/2, attempts.Load())
	x, ours := must2(r.a.ctx.Export())
	y, theirs := must2(up.Export())
	require.NoError(t, x.Connect(theirs))
	require.NoError(t, y.Connect(ours))
	r.until("they are connected", func() bool { return x.State() == rdma.Ready && y.State() == rdma.Ready })
	looking.open()
	require.NoError(t, r.a.ctx.Stop())
	r.until("it is closed", func() bool { return r.a.ctx.State() == pe.Idle && y.State() == rdma.Closed })
	require.NoError(t, up.Close())
}
