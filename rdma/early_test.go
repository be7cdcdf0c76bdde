package rdma_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// earlyRig is a rig whose contexts run before there is a connection.
type earlyRig struct {
	*rig
	ended   []error // of's tasks, in order
	arrived []uint32
}

func newEarlyRig(t *testing.T, a, b rdma.Config) *earlyRig {
	t.Helper()
	return newEarlyRigOn(t, openSoft(t), openSoft(t), a, b, "Receive")
}

func newSimEarlyRig(s *sim.Sim, a, b rdma.Config, kind string) *earlyRig {
	return newEarlyRigOn(testOf(s), s.Host("a").Device(), s.Host("b").Device(), a, b, kind)
}

// newEarlyRigOn makes one whose second side receives in one of the ways of receiveKinds.
func newEarlyRigOn(t *testing.T, onA, onB verbs.Device, a, b rdma.Config, kind string) *earlyRig {
	t.Helper()
	e := &earlyRig{rig: newRigOn(t, onA, onB, a, b)}
	require.NoError(t, receiveKinds[kind](e.b.ctx, 16, 8, func(m *rdma.Message) {
		imm, _ := m.Imm()
		e.arrived = append(e.arrived, imm)
	}))
	require.NoError(t, e.a.ctx.Start())
	require.NoError(t, e.b.ctx.Start())
	e.until("both run", func() bool { return e.a.ctx.State() == pe.Running && e.b.ctx.State() == pe.Running })
	return e
}

// submit submits a task of a's shared pool.
func (e *earlyRig) submit(task *rdma.Task, err error) {
	e.t.Helper()
	require.NoError(e.t, err)
	require.NoError(e.t, pe.SubmitOrFree(task, nil, func(task *rdma.Task, err error) {
		e.ended = append(e.ended, err)
		assert.NoError(e.t, task.Free())
	}))
}

// shortestSignal is how long a ready signal stays unacknowledged before it is taken back, where
// the device would wait for ever.
const shortestSignal = 250 * time.Millisecond

// Programs that export and connect in Running, and submit right behind, as DOCA's do: the tasks
// wait for the peer, which comes late, while ready signals are lost and taken back.
func TestTasksWaitUntilReady(t *testing.T) {
	for _, late := range []time.Duration{20 * time.Millisecond, 700 * time.Millisecond} {
		for kind := range receiveKinds {
			// Which end is the active one is chance.
			runSimulated(t, late.String()+", "+kind, 4, func(t *testing.T, s *sim.Sim) { tasksWaitUntilReady(t, s, late, kind) })
		}
	}
}

func tasksWaitUntilReady(t *testing.T, s *sim.Sim, late time.Duration, kind string) {
	cfg := rdma.Config{}
	if late > shortestSignal {
		cfg.AckTimeout = rdma.Forever // the signal is taken back, and the queue pair reset
	}
	e := newSimEarlyRig(s, cfg, cfg, kind)
	shared := anyPool(e.a.ctx)
	binary.NativeEndian.PutUint64(e.b.mem.Bytes(), 40)
	a, desc := must2(e.a.ctx.Export())
	b, peer := must2(e.b.ctx.Export())
	e.submit(shared.SendImm(a, nil, 0))
	e.submit(shared.FetchAdd(a, bufinv.Target(e.a.peer, 0, 8), 1))
	require.Error(t, a.Connect(desc[:8]))
	require.NoError(t, a.Connect(peer))
	require.Equal(t, rdma.Connecting, a.State())
	for i := range uint32(6) {
		e.submit(shared.SendImm(a, nil, 1+i))
	}
	e.submit(shared.FetchAdd(a, bufinv.Target(e.a.peer, 0, 8), 1))
	e.drive(late) // ready signals are lost
	require.Empty(t, e.ended)
	require.Equal(t, 9, e.a.ctx.InFlight())
	require.NoError(t, b.Connect(desc))
	e.until("all are done", func() bool { return len(e.ended) == 9 && len(e.arrived) == 7 })
	for _, err := range e.ended {
		require.NoError(t, err)
	}
	require.Equal(t, []uint32{0, 1, 2, 3, 4, 5, 6}, e.arrived)
	require.Equal(t, uint64(42), binary.NativeEndian.Uint64(e.b.mem.Bytes()))
	require.Equal(t, rdma.Ready, a.State())
}

// Both ends submit before either is Ready.
func TestBothEndsSubmitEarly(t *testing.T) {
	e := newEarlyRig(t, rdma.Config{}, rdma.Config{})
	shared, back := anyPool(e.a.ctx), anyPool(e.b.ctx)
	copy(e.a.mem.Bytes(), "from a")
	copy(e.b.mem.Bytes(), "from b")
	a, desc := must2(e.a.ctx.Export())
	b, peer := must2(e.b.ctx.Export())
	require.NoError(t, a.Connect(peer))
	require.NoError(t, b.Connect(desc))
	e.submit(shared.Write(a, bufinv.Source(e.a.mem, 0, 6), bufinv.Target(e.a.peer, 100, 6)))
	e.submit(back.Write(b, bufinv.Source(e.b.mem, 0, 6), bufinv.Target(e.b.peer, 100, 6)))
	e.until("both are done", func() bool { return len(e.ended) == 2 })
	require.Equal(t, []error{nil, nil}, e.ended)
	require.Equal(t, "from a", string(e.b.mem.Bytes()[100:106]))
	require.Equal(t, "from b", string(e.a.mem.Bytes()[100:106]))
}

// Tasks on a connection that never becomes Ready come back with the reason, in order.
func TestTasksOfConnectionsThatNeverBecomeReady(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(e *earlyRig, a *rdma.Connection, peer []byte)
		want error // nil: this program wanted it
	}{
		{"the peer does not come", func(e *earlyRig, a *rdma.Connection, peer []byte) { require.NoError(e.t, a.Connect(peer)) }, rdma.ErrTimeout},
		{"closed before Connect", func(e *earlyRig, a *rdma.Connection, _ []byte) { require.NoError(e.t, a.Close()) }, nil},
		{"closed while Connecting", func(e *earlyRig, a *rdma.Connection, peer []byte) {
			require.NoError(e.t, a.Connect(peer))
			require.NoError(e.t, a.Close())
		}, nil},
		{"the context stops", func(e *earlyRig, a *rdma.Connection, peer []byte) {
			require.NoError(e.t, a.Connect(peer))
			require.NoError(e.t, e.a.ctx.Stop())
		}, nil},
		{"the context fails", func(e *earlyRig, a *rdma.Connection, peer []byte) { e.a.ctx.Fail(assert.AnError) }, assert.AnError},
	} {
		runSimulated(t, c.name, 2, func(t *testing.T, s *sim.Sim) {
			e := newSimEarlyRig(s, rdma.Config{ConnectTimeout: 50 * time.Millisecond, CloseTimeout: 50 * time.Millisecond}, rdma.Config{}, "Receive")
			shared := anyPool(e.a.ctx)
			a, _ := must2(e.a.ctx.Export())
			_, peer := must2(e.b.ctx.Export())
			const n = 3
			for i := range uint32(n) {
				e.submit(shared.SendImm(a, nil, i))
			}
			c.end(e, a, peer)
			e.until("all have come back", func() bool { return len(e.ended) == n })
			for _, err := range e.ended {
				require.ErrorIs(t, err, rdma.ErrFlushed)
				var failure *rdma.TaskError
				require.ErrorAs(t, err, &failure)
				require.Same(t, a, failure.Connection)
				if c.want == nil {
					require.NoError(t, failure.Cause)
				} else {
					require.ErrorIs(t, failure.Cause, c.want)
				}
			}
			if late, err := shared.Send(a, nil); err == nil { // the context goes on
				require.Error(t, late.Submit())
				require.NoError(t, late.Free())
			}
			require.Empty(t, e.arrived)
		})
	}
}

// noReadsDevice is a device that executes no reads and atomics of its peers.
type noReadsDevice struct{ verbs.Device }

// Host is the host of the device behind it.
func (d noReadsDevice) Host() host.Host { return host.Of(d.Device) }

func (d noReadsDevice) Query() (verbs.DeviceAttr, error) {
	a, err := d.Device.Query()
	a.MaxQPReadAtomic = 0
	return a, err
}

// A read that is submitted before this end knows that the peer accepts none ends the
// connection, as the peer's refusal would.
func TestEarlyReadsOfPeersThatTakeNone(t *testing.T) {
	sim.Check(t, 2, testEarlyReadsOfPeersThatTakeNone)
}

func testEarlyReadsOfPeersThatTakeNone(s *sim.Sim) {
	t := testOf(s)
	e := newEarlyRigOn(t, s.Host("a").Device(), noReadsDevice{s.Host("b").Device()}, rdma.Config{}, rdma.Config{}, "Receive")
	shared := anyPool(e.a.ctx)
	a, desc := must2(e.a.ctx.Export())
	b, peer := must2(e.b.ctx.Export())
	e.submit(shared.Read(a, bufinv.Source(e.a.peer, 0, 8), bufinv.Target(e.a.mem, 0, 8)))
	e.submit(shared.SendImm(a, nil, 1))
	require.NoError(t, a.Connect(peer))
	late := must(shared.Read(a, bufinv.Source(e.a.peer, 0, 8), bufinv.Target(e.a.mem, 0, 8)))
	require.ErrorIs(t, late.Submit(), rdma.ErrNotSupported, "known by now")
	require.NoError(t, late.Free())
	require.NoError(t, b.Connect(desc))
	e.until("both have come back", func() bool { return len(e.ended) == 2 })
	for _, err := range e.ended {
		require.ErrorIs(t, err, rdma.ErrFlushed)
		require.ErrorIs(t, err, rdma.ErrNotSupported)
	}
	require.ErrorIs(t, a.Err(), rdma.ErrNotSupported)
	require.Empty(t, e.arrived, "what is behind the read is not sent")
}

// Tasks submitted right after Dial wait while nobody listens, and fail if the dial gives up.
func TestTasksWaitForDial(t *testing.T) { sim.Check(t, 3, testTasksWaitForDial) }

func testTasksWaitForDial(s *sim.Sim) {
	t := testOf(s)
	cs := newSimDialRig(s)
	server, client := cs.add(rdma.Config{MaxConnections: 2}), cs.add(rdma.Config{MaxConnections: 2})
	cs.start(server, client)
	l, addr := cs.listen(server, rdma.ListenConfig{})
	require.NoError(t, l.Close())
	shared := anyPool(client)
	var ended []error
	submit := func(conn *rdma.Connection) {
		require.NoError(t, pe.SubmitOrFree(must(shared.Send(conn, nil)), nil, func(task *rdma.Task, err error) {
			ended = append(ended, err)
			assert.NoError(t, task.Free())
		}))
	}
	conn := must(client.Dial(addr, rdma.DialConfig{}))
	submit(conn)
	submit(conn)
	once := must(client.Dial(addr, rdma.DialConfig{Once: true}))
	submit(once)
	cs.until("one has failed", func() bool { return len(ended) == 1 })
	require.ErrorIs(t, ended[0], rdma.ErrFlushed)
	require.ErrorIs(t, ended[0], rdma.ErrNotListening)
	_, err := server.Listen(addr, rdma.ListenConfig{})
	require.NoError(t, err)
	cs.until("the others are sent", func() bool { return len(ended) == 3 && len(server.messages) == 2 })
	require.Equal(t, []error{nil, nil}, ended[1:])
	require.Equal(t, rdma.Ready, conn.State())
}

// Windows are bound in turn with the tasks that wait.
func TestWindowsWaitUntilReady(t *testing.T) {
	e := newEarlyRig(t, rdma.Config{}, rdma.Config{})
	require.NoError(t, e.b.ctx.Stop())
	e.until("it is Idle", func() bool { return e.b.ctx.State() == pe.Idle })
	windows := must(e.b.ctx.WindowPool(1))
	require.NoError(t, e.b.ctx.Start())
	e.until("it runs again", func() bool { return e.b.ctx.State() == pe.Running })
	lent := must(mmap.Alloc(e.b.dev, 4096, windowMemory))
	defer func() { assert.NoError(t, lent.Close()) }()
	a, desc := must2(e.a.ctx.Export())
	b, peer := must2(e.b.ctx.Export())
	window := must(windows.Alloc(b))
	bound := false
	require.NoError(t, window.Bind(lent, 0, 64, mmap.RemoteWrite, func(err error) {
		assert.NoError(t, err)
		bound = true
	}))
	seen := must(mmap.Import(e.a.dev, must(window.Export())))
	defer func() { assert.NoError(t, seen.Close()) }()
	require.NoError(t, b.Connect(desc))
	require.NoError(t, a.Connect(peer))
	e.until("it is bound", func() bool { return bound })
	copy(e.a.mem.Bytes(), "by window")
	e.submit(anyPool(e.a.ctx).Write(a, bufinv.Source(e.a.mem, 0, 9), bufinv.Target(seen, 0, 9)))
	e.until("it is written", func() bool { return len(e.ended) == 1 })
	require.NoError(t, e.ended[0])
	require.Equal(t, "by window", string(lent.Bytes()[:9]))
	require.NoError(t, window.Free())
}
