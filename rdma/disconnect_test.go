package rdma_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// newSeparateRigs makes two contexts like newRigOn, each with an engine of its own, so that
// one can sleep while the other works. Each is the a of its rig.
func newSeparateRigs(t *testing.T, onA, onB verbs.Device, a, b rdma.Config) (first, second *rig) {
	for i, on := range []struct {
		dev verbs.Device
		cfg rdma.Config
	}{{onA, a}, {onB, b}} {
		r := &rig{t: t, engine: pe.New(pe.Config{})}
		t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
		on.cfg.Name = string("ab"[i])
		r.a = r.sideThatStays(on.dev, on.cfg)
		if i == 0 {
			first = r
		} else {
			second = r
		}
	}
	return first, second
}

// both drives both engines until the condition holds.
func both(a, b *rig, what string, done func() bool) {
	a.until(what, func() bool {
		_, err := b.engine.Progress()
		require.NoError(b.t, err)
		return done()
	})
}

// record notes all reports about the connections of a side, beside what its tasks note.
func (s *side) record(list *[]string, last *error) {
	s.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		*list = append(*list, state.String())
		if err != nil {
			*last = err
		}
	})
}

// messagePools makes pools for n sends at from and n receives at to, whose callbacks note
// the messages in the order that they come.
func messagePools(t *testing.T, from, to *side, n int, list *[]string) (send func(*rdma.Connection), receive func(), sent *outcome[*rdma.Task]) {
	sent = &outcome[*rdma.Task]{then: func(task *rdma.Task) { assert.NoError(t, task.Free()) }}
	sends := must(from.ctx.Pool(n, sent.ok, sent.bad))
	receives := must(to.ctx.ReceivePool(n, func(task *rdma.ReceiveTask) {
		*list = append(*list, string(task.Destination().Bytes()))
		assert.NoError(t, task.Free())
	}, func(task *rdma.ReceiveTask, err error) {
		assert.ErrorIs(t, err, rdma.ErrFlushed)
		assert.NoError(t, task.Free())
	}))
	receive = func() {
		for i := range n {
			require.NoError(t, must(receives.Alloc(to.bufs.Target(to.mem, i*64, 64))).Submit())
		}
	}
	number := 0
	send = func(conn *rdma.Connection) {
		text := fmt.Sprint("message ", number)
		off := number % n * 64
		number++
		copy(from.mem.Bytes()[off:], text)
		require.NoError(t, must(sends.Send(conn, from.bufs.Source(from.mem, off, len(text)))).Submit())
	}
	return send, receive, sent
}

func messages(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("message ", i))
	}
	return list
}

// testDisconnect has one end close its connection, or stop. The other end learns of it after
// the messages that were sent before.
func testDisconnect(t *testing.T, onA, onB verbs.Device, stop, ends bool) {
	const n = 20
	a, b := newSeparateRigs(t, onA, onB, rdma.Config{}, rdma.Config{EndWithLastConnection: ends})
	var events []string
	var reason error
	send, receive, sent := messagePools(t, a.a, b.a, n, &events)
	b.a.record(&events, &reason)
	require.NoError(t, a.a.ctx.Start())
	require.NoError(t, b.a.ctx.Start())
	atA, descA := must2(a.a.ctx.Export())
	atB, descB := must2(b.a.ctx.Export())
	require.NoError(t, atA.Connect(descB))
	require.NoError(t, atB.Connect(descA))
	both(a, b, "both run", func() bool { return a.a.ctx.State() == pe.Running && b.a.ctx.State() == pe.Running })
	receive()
	for range n {
		send(atA)
	}
	a.until("all has been sent", func() bool { return sent.count() == n })
	require.Empty(t, sent.errs)
	if stop {
		require.NoError(t, a.a.ctx.Stop())
	} else {
		require.NoError(t, atA.Close())
	}
	both(a, b, "the other end is told", func() bool { return reason != nil })
	require.Equal(t, append(append([]string{"Connecting", "Ready"}, messages(n)...), "Closed"), events)
	require.ErrorIs(t, reason, rdma.ErrPeerClosed)
	require.ErrorIs(t, atB.Err(), rdma.ErrPeerClosed)
	if !ends {
		require.Equal(t, pe.Running, b.a.ctx.State())
		return
	}
	both(a, b, "the other end has ended", func() bool { return b.a.ctx.State() == pe.Idle })
	require.NoError(t, b.a.ctx.Err(), "to be closed is no failure")
}

func TestDisconnect(t *testing.T) {
	for _, stop := range []bool{false, true} {
		for _, ends := range []bool{false, true} {
			// Either end may be the active one.
			runSimulated(t, fmt.Sprintf("stop %v, ends %v", stop, ends), 5, func(t *testing.T, s *sim.Sim) {
				testDisconnect(t, s.Host("a").Device(), s.Host("b").Device(), stop, ends)
			})
		}
	}
}

// testDisconnectWhileAsleep has one end sleep through the ready signal, messages and the
// disconnect notice. When it wakes, it learns of all of them.
func testDisconnectWhileAsleep(t *testing.T, onA, onB verbs.Device) {
	const n = 10
	a, b := newSeparateRigs(t, onA, onB, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	var events []string
	var reason error
	send, receive, sent := messagePools(t, a.a, b.a, n, &events)
	b.a.record(&events, &reason)
	require.NoError(t, a.a.ctx.Start())
	require.NoError(t, b.a.ctx.Start())
	both(a, b, "both run", func() bool { return a.a.ctx.State() == pe.Running && b.a.ctx.State() == pe.Running })
	receive()
	must(b.engine.Progress()) // posts them
	// Which end is the active one is chance: try until it is a.
	var atA, atB *rdma.Connection
	for {
		var descA, descB []byte
		atA, descA = must2(a.a.ctx.Export())
		atB, descB = must2(b.a.ctx.Export())
		require.NoError(t, atB.Connect(descA)) // and falls asleep
		require.NoError(t, atA.Connect(descB))
		start := time.Now()
		a.until("it is ready, or not the active one", func() bool {
			return atA.State() == rdma.Ready || time.Since(start) > 200*time.Millisecond
		})
		if atA.State() == rdma.Ready {
			break
		}
		require.NoError(t, atA.Close())
		require.NoError(t, atB.Close())
		both(a, b, "the places are free", func() bool {
			return len(events) > 0 && events[len(events)-1] == "Closed" && slices.Contains(a.a.reported, "Closed")
		})
		events, a.a.reported = nil, nil
	}
	for range n {
		send(atA)
	}
	a.until("all has been sent", func() bool { return sent.count() == n })
	require.Empty(t, sent.errs)
	require.NoError(t, atA.Close())
	require.Equal(t, rdma.Connecting, atB.State(), "it slept")
	both(a, b, "it is told", func() bool { return reason != nil })
	require.ErrorIs(t, reason, rdma.ErrPeerClosed)
	var states, texts []string
	for _, e := range events {
		if len(e) > len("Connecting") || e[0] == 'm' {
			texts = append(texts, e)
		} else {
			states = append(states, e)
		}
	}
	require.Equal(t, []string{"Connecting", "Ready", "Closed"}, states)
	require.Equal(t, messages(n), texts)
	require.Equal(t, "Closed", events[len(events)-1])
	require.Equal(t, pe.Running, b.a.ctx.State())
}

func TestDisconnectWhileAsleep(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		testDisconnectWhileAsleep(testOf(s), s.Host("a").Device(), s.Host("b").Device())
	})
}

// Tasks of a connection that ended go to the next one to the same peer, at once and
// again and again, while another connection works.
func TestReconnectWhileOthersWork(t *testing.T) {
	// Those that are being closed keep their places until their peers know.
	const places = 60
	r := newRig(t, rdma.Config{MaxConnections: places}, rdma.Config{MaxConnections: places})
	var busy, writes outcome[*rdma.Task]
	ending := false
	busy.then = func(task *rdma.Task) {
		if ending || task.Submit() != nil {
			assert.NoError(t, task.Free())
		}
	}
	others := must(r.a.ctx.Pool(2, busy.ok, busy.bad))
	pool := must(r.a.ctx.Pool(4, writes.ok, writes.bad))
	r.connect(2)
	for i := range 2 {
		require.NoError(t, must(others.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 4096), r.a.bufs.Target(r.a.peer, i*4096, 4096))).Submit())
	}
	a, b := r.a.conns[1], r.b.conns[1]
	var tasks []*rdma.Task
	for i := range 4 {
		tasks = append(tasks, must(pool.Write(a, r.a.bufs.Source(r.a.mem, 1<<16, 1<<18), r.a.bufs.Target(r.a.peer, 1<<20+i<<18, 1<<18))))
	}
	for round := range 50 {
		fill(r.a.mem.Bytes()[1<<16:][:1<<18], byte(round))
		for _, task := range tasks {
			require.NoError(t, task.SetConnection(a))
			require.NoError(t, task.Submit())
		}
		working := len(busy.done)
		switch round % 3 {
		case 0: // in the middle
			require.NoError(t, a.Close())
		case 1:
			require.NoError(t, b.Close())
		case 2:
			r.until("all are done", func() bool { return writes.count() == 4*(round+1) })
			for i := range 4 {
				same(t, r.a.mem.Bytes()[1<<16:][:1<<18], r.b.mem.Bytes()[1<<20+i<<18:][:1<<18])
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		}
		a, b = r.link() // at once: the old one may not be gone
		r.until("all came back", func() bool { return writes.count() == 4*(round+1) })
		r.until("the new one is ready", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
		r.until("the other one works", func() bool { return len(busy.done) > working })
	}
	assert.Empty(t, busy.errs)
	assert.Equal(t, rdma.Ready, r.a.conns[0].State())
	assert.Equal(t, pe.Running, r.a.ctx.State())
	for _, err := range writes.errs {
		assert.ErrorIs(t, err, rdma.ErrFlushed)
	}
	ending = true
	require.NoError(t, rdma.FreeAll(tasks))
	r.until("the others are done", func() bool { return others.Available() == 2 })
}

// A context without connections is Running at once, and stays so; one with some waits
// for all of those that were exported meanwhile.
func TestRunningWithoutConnections(t *testing.T) {
	a, b := newSeparateRigs(t, openSoft(t), openSoft(t), rdma.Config{MaxConnections: 3}, rdma.Config{MaxConnections: 3, EndWithLastConnection: true})
	require.Equal(t, time.Minute, a.a.ctx.Config().ConnectTimeout, "it is finite where none was given")
	for _, r := range []*rig{a, b} {
		require.NoError(t, r.a.ctx.Start())
		r.until("it runs", func() bool { return r.a.ctx.State() == pe.Running })
		for range 10 {
			must(r.engine.Progress())
		}
		require.Equal(t, []pe.State{pe.Starting, pe.Running}, r.a.states)
	}

	// Exported, and never connected: nobody minds, and it is closed at once.
	for _, r := range []*rig{a, b} {
		var events []string
		var reason error
		r.a.record(&events, &reason)
		conn, _ := must2(r.a.ctx.Export())
		must(r.engine.Progress())
		require.NoError(t, conn.Close())
		both(a, b, "it is closed", func() bool { return len(events) == 1 })
		require.Equal(t, []string{"Closed"}, events)
		require.NoError(t, reason)
	}
	require.Equal(t, pe.Running, a.a.ctx.State())
	b.until("the one that ends with its last connection has ended", func() bool { return b.a.ctx.State() == pe.Idle })
	require.NoError(t, b.a.ctx.Err())
}

// One that is exported in Starting is waited for, until it is closed; stopping does
// not wait for it.
func TestExportedIsWaitedFor(t *testing.T) {
	for _, stop := range []bool{false, true} {
		r := newRig(t, rdma.Config{MaxConnections: 2}, rdma.Config{MaxConnections: 2})
		require.NoError(t, r.a.ctx.Start())
		require.NoError(t, r.b.ctx.Start())
		never, _ := must2(r.a.ctx.Export())
		a, b := r.link()
		r.until("one is ready", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
		for range 100 {
			must(r.engine.Progress())
		}
		require.Equal(t, pe.Starting, r.a.ctx.State())
		if stop {
			require.NoError(t, r.a.ctx.Stop())
			r.until("it is Idle", func() bool { return r.a.ctx.State() == pe.Idle })
			require.Equal(t, rdma.Closed, never.State())
			continue
		}
		require.NoError(t, never.Close())
		r.until("it runs", func() bool { return r.a.ctx.State() == pe.Running })
	}
}

// What becomes of a context whose last connection ends, by the way that it ends.
func TestLastConnectionEnds(t *testing.T) {
	for _, c := range []struct {
		name     string
		end      func(r *rig, a, b *rdma.Connection)
		fails    bool
		reported []string
	}{
		{"closed here", func(r *rig, a, _ *rdma.Connection) { require.NoError(r.t, a.Close()) }, false,
			[]string{"Connecting", "Ready", "Closed"}},
		{"closed by the peer", func(r *rig, _, b *rdma.Connection) { require.NoError(r.t, b.Close()) }, false,
			[]string{"Connecting", "Ready", "Closed"}},
		{"the peer stops", func(r *rig, _, _ *rdma.Connection) { require.NoError(r.t, r.b.ctx.Stop()) }, false,
			[]string{"Connecting", "Ready", "Closed"}},
		{"the peer is gone", func(r *rig, a, b *rdma.Connection) {
			require.NoError(r.t, b.Close()) // CloseTimeout is negative: it sends no disconnect notice
		}, true, []string{"Connecting", "Ready", "Failed"}},
	} {
		for _, ends := range []bool{false, true} {
			runSimulated(t, fmt.Sprintf("%s, ends %v", c.name, ends), 2, func(t *testing.T, s *sim.Sim) {
				cfg := rdma.Config{}
				if c.fails {
					cfg.CloseTimeout = rdma.None
				}
				r := &rig{t: t, engine: pe.New(pe.Config{})}
				t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
				r.a = r.sideThatStays(s.Host("a").Device(), rdma.Config{EndWithLastConnection: ends, Keepalive: 5 * time.Millisecond,
					AckTimeout: 5 * time.Millisecond})
				r.b = r.sideThatStays(s.Host("b").Device(), cfg)
				var events []string
				var reason error
				r.a.record(&events, &reason)
				r.connect(1)
				a, b := r.a.conns[0], r.b.conns[0]
				c.end(r, a, b)
				r.until("it is told", func() bool { return len(events) >= len(c.reported) })
				require.Equal(t, c.reported, events)
				if c.fails {
					require.ErrorIs(t, reason, rdma.ErrRetryExceeded)
				}
				if !ends {
					for range 100 {
						must(r.engine.Progress())
					}
					require.Equal(t, pe.Running, r.a.ctx.State())
					require.NoError(t, a.Close())
					r.until("the place is free", func() bool { return events[len(events)-1] == "Closed" })
					if r.b.ctx.State() == pe.Running {
						require.NoError(t, b.Close())
						r.until("the peer's place is free", func() bool { return slices.Contains(r.b.reported, "Closed") })
						a, b := r.link()
						r.until("another can follow", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
					}
					return
				}
				r.until("the context has ended", func() bool { return r.a.ctx.State() == pe.Idle })
				if c.fails {
					require.ErrorIs(t, r.a.ctx.Err(), rdma.ErrRetryExceeded)
				} else {
					require.NoError(t, r.a.ctx.Err())
				}
			})
		}
	}
}

// If the peer closes the last connection while requests are under way, the context fails.
// Waiting receives do not count.
func TestLastConnectionEndsWithTasksUnderWay(t *testing.T) {
	for _, c := range []struct {
		name                 string
		send, closed, follow bool
		fails                bool
	}{
		{name: "a receive"},
		{name: "a receive and a send", send: true, fails: true},
		{name: "closed here", send: true, closed: true},
		{name: "another connection follows", send: true, follow: true},
	} {
		runSimulated(t, c.name, 3, func(t *testing.T, s *sim.Sim) {
			c := c // this run's
			r := newSimRig(s, rdma.Config{EndWithLastConnection: true}, rdma.Config{})
			var sends outcome[*rdma.Task]
			var recvs outcome[*rdma.ReceiveTask]
			pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
			recvPool := must(r.a.ctx.ReceivePool(1, recvs.ok, recvs.bad))
			r.connect(1)
			a, b := r.a.conns[0], r.b.conns[0]
			recv := must(recvPool.Alloc(r.a.bufs.Target(r.a.mem, 0, 64)))
			require.NoError(t, recv.Submit())
			if c.send { // the peer has no receive for it
				require.NoError(t, must(pool.Send(a, r.a.bufs.Source(r.a.mem, 64, 64))).Submit())
			}
			closed := false
			r.a.ctx.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
				if state == rdma.Closed {
					closed = true
					if c.follow {
						must2(r.a.ctx.Export())
						c.follow = false
					}
				}
			})
			followed := c.follow
			if c.closed {
				require.NoError(t, a.Close())
			} else {
				require.NoError(t, b.Close())
			}
			r.until("it is closed", func() bool { return closed })
			if followed {
				for range 100 {
					must(r.engine.Progress())
				}
				require.Equal(t, pe.Running, r.a.ctx.State())
				require.NoError(t, r.a.ctx.Stop())
			}
			r.until("the receive has come back", func() bool { return recvs.count() == 1 })
			require.NoError(t, recv.Free())
			for _, err := range sends.errs {
				require.ErrorIs(t, err, pe.ErrFlushed)
				require.Equal(t, !c.closed, errors.Is(err, rdma.ErrPeerClosed))
			}
			require.Equal(t, c.send, len(sends.errs) == 1)
			if c.send {
				require.NoError(t, sends.failed[0].Free())
			}
			r.until("the context has ended", func() bool { return r.a.ctx.State() == pe.Idle })
			if c.fails {
				require.ErrorIs(t, r.a.ctx.Err(), rdma.ErrPeerClosed)
				require.ErrorContains(t, r.a.ctx.Err(), "with requests under way")
			} else {
				require.NoError(t, r.a.ctx.Err())
			}
		})
	}
}

// The context also fails if that connection is not the last to end. A task for a connection
// that the peer has closed fails with ErrPeerClosed, not with what follows from it: that the
// peer's memory is no longer there.
func TestConnectionsEndOneAfterTheOther(t *testing.T) {
	r := newRig(t, rdma.Config{EndWithLastConnection: true, MaxConnections: 2}, rdma.Config{MaxConnections: 2})
	var sends outcome[*rdma.Task]
	var writes outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, sends.ok, sends.bad))
	writePool := must(r.a.ctx.Pool(1, writes.ok, writes.bad))
	r.connect(2)
	require.NoError(t, must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 64, 64))).Submit()) // the peer has no receive
	require.NoError(t, r.b.conns[0].Close())
	r.until("the first is closed", func() bool { return r.a.conns[0].State() == rdma.Closed && sends.count() == 1 })
	require.NoError(t, r.a.peer.Close())
	_, err := writePool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8))
	require.ErrorIs(t, err, rdma.ErrPeerClosed)
	require.NoError(t, sends.failed[0].Free())
	require.Equal(t, pe.Running, r.a.ctx.State())
	require.NoError(t, r.b.conns[1].Close())
	r.until("the context has ended", func() bool { return r.a.ctx.State() == pe.Idle })
	require.ErrorIs(t, r.a.ctx.Err(), rdma.ErrPeerClosed)
}

// A connection is Closed only when the peer knows that this end has left, or Config.CloseTimeout is
// over: a program that then exits does not leave behind a peer that finds out by a keepalive.
func TestDisconnectUnderLoss(t *testing.T) { sim.Check(t, 20, testDisconnectUnderLoss) }

func testDisconnectUnderLoss(s *sim.Sim) {
	t := testOf(s)
	server, client := s.Host("server"), s.Host("client")
	cs := newDialRig(t, server.Device(), client.Device())
	cfg := rdma.Config{CloseTimeout: time.Minute}
	from, to := cs.add(cfg), cs.add(cfg)
	cs.start(from, to)
	_, addr := cs.listen(from, rdma.ListenConfig{})
	conn, err := to.Dial(addr, rdma.DialConfig{})
	require.NoError(t, err)
	cs.until("both ends are Ready", func() bool { return len(from.ready) == 1 && len(to.ready) == 1 })
	s.Link(server, client).Set(sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: 0.15})
	require.NoError(t, from.ready[0].Close())
	cs.until("the connection is closed", func() bool { return from.closed == 1 })
	require.NoError(t, from.Close())
	server.Crash()
	cs.until("the peer has ended", func() bool { return to.closed == 1 || conn.State() == rdma.Failed })
	require.ErrorIs(t, to.errs[conn], rdma.ErrPeerClosed)
}
