package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// The ends come up one long after the other, with ready signals that fail quickly.
func TestPeerComesLate(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		for _, timeout := range []time.Duration{100 * time.Microsecond, rdma.Forever} {
			t.Run(first+" "+timeout.String(), func(t *testing.T) {
				sim.Check(t, 4, func(s *sim.Sim) { testPeerComesLate(s, first, timeout) })
			})
		}
	}
}

func testPeerComesLate(s *sim.Sim, first string, timeout time.Duration) {
	t := testOf(s)
	cfg := rdma.Config{AckTimeout: timeout}
	r := newSimRig(s, cfg, cfg)
	r.start()
	a, b, descA, descB := r.export()
	early, late := func() error { return a.Connect(descB) }, func() error { return b.Connect([]byte(descriptor.Armor(descA))) }
	if first == "b" {
		early, late = late, early
	}
	require.NoError(t, early())
	r.drive(20 * time.Millisecond) // ready signals are lost
	require.Equal(t, pe.Starting, r.a.ctx.State())
	require.Equal(t, pe.Starting, r.b.ctx.State())
	require.NoError(t, late())
	r.until("both run", func() bool { return r.a.ctx.State() == pe.Running && r.b.ctx.State() == pe.Running })
	assert.Equal(t, a.QPN(), b.PeerQPN())
	assert.Equal(t, a.LocalAddr(), b.PeerAddr())
	assert.EqualValues(t, 4096, a.MTU())
}

// The passive end speaks before the acknowledgement of the ready signal has come, and
// makes the active end Ready.
func TestMessageOvertakesReadySignal(t *testing.T) { sim.Check(t, 5, testMessageOvertakesReadySignal) }

func testMessageOvertakesReadySignal(s *sim.Sim) {
	t := testOf(s)
	const tasks = 4
	r := newSimRig(s, rdma.Config{MaxConnections: 2, AckTimeout: time.Second}, rdma.Config{MaxConnections: 2})
	var writes outcome[*rdma.Task]
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	writePool := must(r.a.ctx.Pool(tasks, writes.ok, writes.bad))
	recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	sendPool := must(r.b.ctx.Pool(1, sends.ok, sends.bad))
	r.connect(1)
	recv := must(recvPool.Alloc(nil))
	require.NoError(t, recv.Submit())
	a, b := r.halfOpen()
	send := must(sendPool.Send(b, nil))
	s.Heal()
	require.NoError(t, send.Submit())
	r.until("the message has arrived", func() bool { return len(recvs.done) == 1 })
	require.Equal(t, rdma.Ready, a.State())

	// The send queue has room for all tasks beside the ready signal.
	for range tasks {
		task := must(writePool.Write(a, r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
		require.NoError(t, task.Submit(pe.Aggregate))
		writes.then = func(t *rdma.Task) { _ = t.Free() }
	}
	r.until("all are written", func() bool { return writes.count() == tasks })
	assert.Empty(t, writes.errs)
	r.until("the send has completed", func() bool { return sends.count() == 1 })
	require.NoError(t, send.Free())
	require.NoError(t, recv.Free())
}

// As before, and then the ready signal fails: so does the connection, though nothing else
// is under way on it.
func TestReadySignalFailsLate(t *testing.T) { sim.Check(t, 5, testReadySignalFailsLate) }

func testReadySignalFailsLate(s *sim.Sim) {
	t := testOf(s)
	r := newSimRig(s, rdma.Config{MaxConnections: 2, AckTimeout: 200 * time.Millisecond}, rdma.Config{MaxConnections: 2})
	var recvs outcome[*rdma.ReceiveTask]
	var sends outcome[*rdma.Task]
	recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	sendPool := must(r.b.ctx.Pool(1, sends.ok, sends.bad))
	r.connect(1)
	recv := must(recvPool.Alloc(nil))
	require.NoError(t, recv.Submit())
	a, b := r.halfOpen()
	send := must(sendPool.Send(b, nil))
	s.Heal()
	require.NoError(t, send.Submit())
	r.until("the message has arrived", func() bool { return len(recvs.done) == 1 })
	require.Equal(t, rdma.Ready, a.State())
	s.Cut(s.Host("b"), s.Host("a"))
	r.until("it has failed", func() bool { return a.State() == rdma.Failed })
	assert.ErrorIs(t, a.Err(), rdma.ErrRetryExceeded)
	assert.Equal(t, pe.Running, r.a.ctx.State(), "the other connection goes on")
	r.until("the send has completed", func() bool { return sends.count() == 1 })
	require.NoError(t, send.Free())
	require.NoError(t, recv.Free())
}

// halfOpen makes a connection of which b is Ready and a still waits for the
// acknowledgement of its ready signal, and leaves nothing arriving at a.
func (r *rig) halfOpen() (a, b *rdma.Connection) {
	// Which end is active is chance: try until it is a.
	for tries := 0; b == nil || b.State() != rdma.Ready; tries++ {
		if tries > 0 {
			r.sim.Heal()
			require.NoError(r.t, a.Close())
			require.NoError(r.t, b.Close())
			r.until("the places are free", func() bool { return r.a.closed() == tries && r.b.closed() == tries })
		}
		r.sim.Cut(r.sim.Host("b"), r.sim.Host("a"))
		a, b = r.link()
		r.drive(20 * time.Millisecond) // either's ready signal arrives or is lost, and acknowledgements to a are
	}
	require.Equal(r.t, rdma.Connecting, a.State())
	return a, b
}

// An end that closes before it knows that its peer is Ready still sends a disconnect notice.
func TestCloseBeforeReady(t *testing.T) { sim.Check(t, 5, testCloseBeforeReady) }

func testCloseBeforeReady(s *sim.Sim) {
	t := testOf(s)
	r := newSimRig(s, rdma.Config{MaxConnections: 2, CloseTimeout: 10 * time.Second}, rdma.Config{MaxConnections: 2, Keepalive: rdma.None})
	r.connect(1)
	a, b := r.halfOpen()
	require.NoError(t, a.Close())
	s.Heal()
	r.until("the peer has left", func() bool { return b.State() == rdma.Closed })
	require.ErrorIs(t, b.Err(), rdma.ErrPeerClosed)
}

// When an end closes, however early, the other end learns of it, and does not wait for ever.
func TestCloseWhileConnecting(t *testing.T) { sim.Check(t, 3, testCloseWhileConnecting) }

func testCloseWhileConnecting(s *sim.Sim) {
	t := testOf(s)
	const tries = 20 // which end sends the ready signal is chance
	cfg := rdma.Config{MaxConnections: 2, CloseTimeout: time.Hour, ConnectTimeout: rdma.Forever}
	r := newSimRig(s, cfg, cfg)
	r.connect(1)
	for i := range tries {
		a, b := r.link()
		if i%2 == 0 {
			require.NoError(t, a.Close())
		} else {
			require.NoError(t, b.Close())
			b = a
		}
		r.until("the peer has left", func() bool { return b.State() == rdma.Closed })
		require.ErrorIs(t, b.Err(), rdma.ErrPeerClosed)
		r.until("the places are free", func() bool { return r.a.closed() == i+1 && r.b.closed() == i+1 })
	}
}

// Of two ends that close at once, neither waits for the other to take what it cannot take any more.
func TestSimultaneousDisconnect(t *testing.T) {
	cfg := rdma.Config{MaxConnections: 2, CloseTimeout: time.Hour}
	r := newRig(t, cfg, cfg)
	var sends outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	r.connect(2)
	a, b := r.a.conns[1], r.b.conns[1]
	send := must(pool.Send(a, r.a.bufs.Source(r.a.mem, 0, 64)))
	require.NoError(t, send.Submit()) // the peer has no receive for it
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	r.until("both are gone", func() bool { return r.a.closed() == 1 && r.b.closed() == 1 })
	require.Len(t, sends.errs, 1)
	require.ErrorIs(t, sends.errs[0], rdma.ErrFlushed)
	require.NoError(t, send.Free())
}

// closed counts the connections that were reported Closed to the side.
func (s *side) closed() (n int) {
	for _, state := range s.reported {
		if state == rdma.Closed.String() {
			n++
		}
	}
	return n
}

func TestConnectTimeout(t *testing.T) { sim.Check(t, 4, testConnectTimeout) }

func testConnectTimeout(s *sim.Sim) {
	t := testOf(s)
	cfg := rdma.Config{ConnectTimeout: time.Minute, AckTimeout: time.Millisecond}
	r := newSimRig(s, cfg, cfg)
	r.start()
	a, _, _, descB := r.export()
	require.NoError(t, a.Connect(descB))
	r.drive(time.Minute - time.Millisecond)
	require.Equal(t, pe.Starting, r.a.ctx.State())
	r.drive(2 * time.Millisecond)
	require.NotEqual(t, pe.Starting, r.a.ctx.State())
	assert.Equal(t, rdma.Failed.String(), r.a.reported[0])
	assert.ErrorIs(t, a.Err(), rdma.ErrTimeout)
	assert.ErrorIs(t, r.a.ctx.Err(), rdma.ErrTimeout)
}

func TestConnectToItself(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var sends outcome[*rdma.Task]
	var recvs outcome[*rdma.ReceiveTask]
	sendPool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
	require.NoError(t, r.a.ctx.Start())
	conn, desc, err := r.a.ctx.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Connect(desc))
	r.until("it runs", func() bool { return r.a.ctx.State() == pe.Running })
	copy(r.a.mem.Bytes(), "to myself")
	recv := must(recvPool.Alloc(r.a.bufs.Target(r.a.mem, 100, 9)))
	require.NoError(t, recv.Submit())
	send := must(sendPool.Send(conn, r.a.bufs.Source(r.a.mem, 0, 9)))
	require.NoError(t, send.Submit())
	r.until("the message is back", func() bool { return len(sends.done) == 1 && len(recvs.done) == 1 })
	assert.Equal(t, "to myself", string(recv.Destination().Bytes()))
	require.NoError(t, send.Free())
	require.NoError(t, recv.Free())
}

func TestConnectMisuse(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	_, _, err := r.a.ctx.Export()
	require.ErrorIs(t, err, pe.ErrBadState)
	r.start()
	a, b, descA, descB := r.export()
	_, _, err = r.a.ctx.Export()
	require.ErrorIs(t, err, rdma.ErrFull)
	require.ErrorContains(t, err, "MaxConnections")

	require.ErrorIs(t, a.Connect(nil), descriptor.ErrTruncated)
	require.ErrorIs(t, a.Connect(descB[:len(descB)-1]), descriptor.ErrTruncated)
	memory := must(r.b.mem.Export(r.b.dev))
	require.ErrorIs(t, a.Connect(memory), descriptor.ErrKind)
	require.Equal(t, rdma.Exported, a.State())

	require.NoError(t, a.Connect(descB))
	require.ErrorIs(t, a.Connect(descB), rdma.ErrNotReady)
	require.NoError(t, b.Connect(descA))
	r.until("both run", func() bool { return r.a.ctx.State() == pe.Running && r.b.ctx.State() == pe.Running })
	assert.Contains(t, a.String(), `connection 0 of context "a"`)
	assert.Zero(t, a.ID())
	assert.Same(t, r.a.ctx, a.Context())
	assert.Positive(t, a.MaxReadAtomic())
	a.SetUserData(7)
	assert.Equal(t, 7, a.UserData())
}

func TestFamiliesMismatch(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	table := must(r.b.dev.GIDs(1))
	if len(table) < 2 {
		t.Skip("no IPv6 on the loopback interface")
	}
	six := must(rdma.New(r.b.dev, rdma.Config{Path: rdma.PathConfig{GIDIndex: new(table[1].Index)}}))
	require.NoError(t, r.engine.Connect(six))
	require.NoError(t, six.Start())
	require.NoError(t, r.a.ctx.Start())
	a, _, err := r.a.ctx.Export()
	require.NoError(t, err)
	_, desc, err := six.Export()
	require.NoError(t, err)
	require.ErrorIs(t, a.Connect(desc), rdma.ErrMismatch)
	require.NoError(t, six.Stop())
	r.until("it is Idle", func() bool { return six.State() == pe.Idle })
	require.NoError(t, six.Close())
}

func TestIPv6(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	table := must(r.a.dev.GIDs(1))
	if len(table) < 2 {
		t.Skip("no IPv6 on the loopback interface")
	}
	var both []*rdma.Connections
	for _, s := range []*side{r.a, r.b} {
		c := must(rdma.New(s.dev, rdma.Config{Path: rdma.PathConfig{GIDIndex: new(1)}}))
		require.NoError(t, r.engine.Connect(c))
		require.NoError(t, c.Start())
		both = append(both, c)
	}
	a, descA, err := both[0].Export()
	require.NoError(t, err)
	b, descB, err := both[1].Export()
	require.NoError(t, err)
	require.NoError(t, a.Connect(descB))
	require.NoError(t, b.Connect(descA))
	r.until("both are ready", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
	assert.True(t, a.PeerAddr().Addr().Is6())
	for _, c := range both {
		require.NoError(t, c.Stop())
		r.until("it is Idle", func() bool { return c.State() == pe.Idle })
		require.NoError(t, c.Close())
	}
}

// Connections can be made, and closed, while others work.
func TestConnectWhileRunning(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 3}, rdma.Config{MaxConnections: 3})
	r.connect(1)
	for range 10 {
		a, b := r.link()
		r.until("it is ready", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		r.until("both are gone", func() bool {
			return r.a.reported[len(r.a.reported)-1] == "Closed" && r.b.reported[len(r.b.reported)-1] == "Closed"
		})
		assert.Len(t, r.a.ctx.List(), 1)
	}
	assert.Equal(t, pe.Running, r.a.ctx.State())
}

func TestRestart(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var adds outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, adds.ok, adds.bad))
	for i := range 3 {
		r.connect(1)
		add := must(pool.FetchAdd(r.a.conns[i], r.a.bufs.Target(r.a.peer, 0, 8), 1))
		require.NoError(t, add.Submit())
		r.until("the sum is there", func() bool { return len(adds.done) == i+1 })
		assert.EqualValues(t, i, add.Original())
		require.NoError(t, add.Free())
		require.NoError(t, r.a.ctx.Stop())
		require.NoError(t, r.b.ctx.Stop())
		r.until("both are Idle", func() bool { return r.a.ctx.State() == pe.Idle && r.b.ctx.State() == pe.Idle })
	}
	assert.Equal(t, rdma.Closed, r.a.conns[0].State())
	require.NoError(t, r.a.conns[0].Close())
	require.Error(t, r.a.conns[0].Connect(nil))
}
