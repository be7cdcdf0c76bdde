package rdma_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// ucRig is two ends of UC, whose messages come to arrived.
type ucRig struct {
	*rig
	pool    *rdma.Pool
	tasks   outcome[*rdma.Task]
	arrived []string
}

func newUCRig(t *testing.T, onA, onB verbs.Device, cfg rdma.Config) *ucRig {
	t.Helper()
	cfg.Transport, cfg.Permissions = verbs.UC, everything
	u := &ucRig{rig: newRigOn(t, onA, onB, cfg, cfg)}
	u.pool = must(u.a.ctx.Pool(64, u.tasks.ok, u.tasks.bad))
	require.NoError(t, u.b.ctx.Receive(256, 4096, func(m *rdma.Message) {
		imm, _ := m.Imm()
		u.arrived = append(u.arrived, fmt.Sprintf("%v %d %q", m.Opcode(), imm, m.Bytes()))
	}))
	return u
}

// close closes both ends: UC reports the close of one end to neither.
func (u *ucRig) close() {
	for _, task := range append(u.tasks.done, u.tasks.failed...) {
		assert.NoError(u.t, task.Free())
	}
	u.tasks.done, u.tasks.failed = nil, nil
	for _, s := range []*side{u.a, u.b} {
		for _, conn := range s.conns {
			require.NoError(u.t, conn.Close())
		}
	}
	u.until("both are Idle", func() bool { return u.a.ctx.State() == pe.Idle && u.b.ctx.State() == pe.Idle })
}

func testUnreliableConnection(t *testing.T, onA, onB verbs.Device) {
	u := newUCRig(t, onA, onB, rdma.Config{})
	u.connect(1)
	conn, a, b := u.a.conns[0], u.a, u.b

	copy(a.mem.Bytes(), "written")
	submit := func(task *rdma.Task, err error) {
		require.NoError(t, err)
		require.NoError(t, task.TrySubmit())
	}
	submit(u.pool.Write(conn, a.bufs.Source(a.mem, 0, 7), a.bufs.Target(a.peer, 0, 7)))
	submit(u.pool.WriteImm(conn, a.bufs.Source(a.mem, 0, 7), a.bufs.Target(a.peer, 100, 7), 5))
	submit(u.pool.Send(conn, a.bufs.Source(a.mem, 0, 7)))
	submit(u.pool.SendImm(conn, nil, 6))
	u.until("the messages come", func() bool { return len(u.arrived) == 3 })
	assert.Equal(t, []string{`write with immediate 5 ""`, `send 0 "written"`, `send with immediate 6 ""`}, u.arrived)
	assert.Equal(t, "written", string(b.mem.Bytes()[:7]))
	assert.Equal(t, "written", string(b.mem.Bytes()[100:107]))
	u.until("all have left", func() bool { return len(u.tasks.done) == 4 })
	require.Empty(t, u.tasks.errs)

	// The other end closes, and this one is not told.
	require.NoError(t, b.conns[0].Close())
	u.until("the peer is gone", func() bool { return b.ctx.State() == pe.Idle })
	submit(u.pool.Send(conn, a.bufs.Source(a.mem, 0, 7)))
	u.until("the message has left", func() bool { return len(u.tasks.done) == 5 })
	assert.Equal(t, rdma.Ready, conn.State())
	u.close()
	require.Empty(t, u.tasks.errs)
}

func TestUnreliableConnection(t *testing.T) {
	testUnreliableConnection(t, openSoft(t), openSoft(t))
}

// Both ends become Ready whatever is lost, and what is lost later is a successful send.
func TestUnreliableConnectionUnderLoss(t *testing.T) {
	sim.Check(t, 5, testUnreliableConnectionUnderLoss)
}

func testUnreliableConnectionUnderLoss(s *sim.Sim) {
	t := testOf(s)
	u := newUCRig(t, s.Host("a").Device(), s.Host("b").Device(), rdma.Config{})
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond, Loss: 0.5})
	u.connect(1)
	const rounds = 40
	for range rounds {
		for range 8 {
			task := must(u.pool.SendImm(u.a.conns[0], nil, 1))
			require.NoError(t, task.Submit())
		}
		u.until("they have left", func() bool { return len(u.tasks.done) == 8 })
		for _, task := range u.tasks.done {
			require.NoError(t, task.Free())
		}
		u.tasks.done = nil
	}
	require.Empty(t, u.tasks.errs)
	s.SetDefaultLink(sim.LinkConfig{Latency: 5 * time.Microsecond})
	// What was sent before has arrived, or is lost, when this has come.
	require.NoError(t, must(u.pool.SendImm(u.a.conns[0], nil, 99)).Submit())
	u.until("the last one comes", func() bool {
		return len(u.arrived) > 0 && u.arrived[len(u.arrived)-1] == `send with immediate 99 ""`
	})
	u.until("it has left", func() bool { return len(u.tasks.done) == 1 })
	assert.Less(t, len(u.arrived), 8*rounds, "something is lost")
	assert.Greater(t, len(u.arrived), 1, "something has arrived")
	assert.Equal(t, rdma.Ready, u.a.conns[0].State())
	u.close()
}

// A Ready end whose signals are all lost goes on with them: the other one becomes Ready when the
// network does its work again.
func TestUnreliableConnectionOverOneWay(t *testing.T) {
	sim.Check(t, 3, testUnreliableConnectionOverOneWay)
}

func testUnreliableConnectionOverOneWay(s *sim.Sim) {
	t := testOf(s)
	u := newUCRig(t, s.Host("a").Device(), s.Host("b").Device(), rdma.Config{})
	s.Cut(s.Host("b"), s.Host("a"))
	require.NoError(t, u.a.ctx.Start())
	require.NoError(t, u.b.ctx.Start())
	a, b := u.link()
	ready := func(conn *rdma.Connection) bool { return conn.State() == rdma.Ready }
	u.until("one is Ready", func() bool { return ready(a) || ready(b) })
	u.drive(2500 * time.Millisecond) // its first signals are lost
	require.False(t, ready(a) && ready(b))
	s.Heal()
	u.until("both are Ready", func() bool { return ready(a) && ready(b) })
	u.close()
}

// What UC does not have is refused, where it is asked for.
func TestUnreliableConnectionRefuses(t *testing.T) {
	dev := openSoft(t)
	u := newUCRig(t, dev, openSoft(t), rdma.Config{MaxConnections: 2})
	u.connect(1)
	conn, a := u.a.conns[0], u.a
	for name, alloc := range map[string]func() (*rdma.Task, error){
		"read":             func() (*rdma.Task, error) { return u.pool.Read(conn, nil, nil) },
		"compare-and-swap": func() (*rdma.Task, error) { return u.pool.CompareSwap(conn, a.bufs.Target(a.peer, 0, 8), 0, 1) },
		"fetch-and-add":    func() (*rdma.Task, error) { return u.pool.FetchAdd(conn, a.bufs.Target(a.peer, 0, 8), 1) },
		"atomic write": func() (*rdma.Task, error) {
			return u.pool.AtomicWrite(conn, a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.peer, 0, 8))
		},
		"sync event get": func() (*rdma.Task, error) { return u.pool.SyncEventGet(conn, (*syncevent.Event)(nil)) },
		"sync event add": func() (*rdma.Task, error) { return u.pool.SyncEventAdd(conn, (*syncevent.Event)(nil), 1) },
	} {
		_, err := alloc()
		require.ErrorIs(t, err, rdma.ErrNotSupported, name)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "UC", name)
	}
	_, err := a.ctx.Dial("127.0.0.1:1", rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrNotSupported)
	_, err = a.ctx.Listen(":0", rdma.ListenConfig{})
	require.ErrorIs(t, err, rdma.ErrNotSupported)
	_, err = rdma.New(dev, rdma.Config{Transport: verbs.UC, Keepalive: time.Second})
	require.ErrorIs(t, err, rdma.ErrInvalid)

	engine := newEngine(t)
	reliable := must(rdma.New(dev, rdma.Config{Engine: engine}))
	require.NoError(t, reliable.Start())
	other, desc := must2(reliable.Export())
	mine, own := must2(a.ctx.Export())
	require.ErrorIs(t, other.Connect(own), rdma.ErrMismatch)
	require.ErrorIs(t, mine.Connect(desc), rdma.ErrMismatch)
	require.NoError(t, mine.Close())
	require.NoError(t, other.Close())
	require.NoError(t, reliable.Close())
	u.close()
}

// A peer that never comes ends the wait.
func TestUnreliablePeerNeverComes(t *testing.T) { sim.Check(t, 2, testUnreliablePeerNeverComes) }

func testUnreliablePeerNeverComes(s *sim.Sim) {
	t := testOf(s)
	u := newUCRig(t, s.Host("a").Device(), s.Host("b").Device(), rdma.Config{ConnectTimeout: 20 * time.Millisecond})
	require.NoError(t, u.a.ctx.Start())
	require.NoError(t, u.b.ctx.Start())
	conn, _ := must2(u.a.ctx.Export())
	late, desc := must2(u.b.ctx.Export())
	require.NoError(t, conn.Connect(desc))
	u.until("it gives up", func() bool { return conn.Err() != nil })
	require.ErrorIs(t, conn.Err(), rdma.ErrTimeout)
	require.NoError(t, conn.Close())
	require.NoError(t, late.Close())
	u.until("both are Idle", func() bool { return u.a.ctx.State() == pe.Idle && u.b.ctx.State() == pe.Idle })
}
