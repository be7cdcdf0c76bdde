package rdma_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// Each connection has receives of its own: every message arrives once, in order, with its bytes,
// on connections that come and go, in two runs of the context.
func TestReceivePerConnection(t *testing.T) {
	for _, kind := range []string{"by descriptors", "by address", "UC", "no shared queues"} {
		for _, size := range []int{0, 40} {
			t.Run(fmt.Sprintf("%s, %d bytes", kind, size), func(t *testing.T) { receivesPerConnection(t, kind, size) })
		}
	}
}

func receivesPerConnection(t *testing.T, kind string, size int) {
	const connections, receives = 3, 5
	r := &rig{t: t, engine: newEngine(t)}
	near, far := openSoft(t), openSoft(t)
	if kind == "no shared queues" {
		near = openUnshared(t)
	}
	cfg := rdma.Config{Engine: r.engine, Name: "server", MaxConnections: connections}
	if kind == "UC" {
		cfg.Transport = verbs.UC
	}
	server := must(rdma.New(near, cfg))
	cfg.Name = "client"
	client := must(rdma.New(far, cfg))
	got := map[*rdma.Connection]uint64{} // messages, which are numbered
	require.NoError(t, server.ReceivePerConnection(receives, size, func(m *rdma.Message) {
		conn := m.Connection()
		imm, ok := m.Imm()
		require.True(t, ok)
		require.Equal(t, uint32(got[conn]), imm)
		if size > 0 {
			require.Len(t, m.Bytes(), 8)
			require.Equal(t, got[conn], binary.BigEndian.Uint64(m.Bytes()))
		} else {
			require.Nil(t, m.Bytes())
		}
		got[conn]++
	}))
	sends := outcome[*rdma.Task]{then: func(task *rdma.Task) { _ = task.Free() }}
	pool := must(client.Pool(64, sends.ok, sends.bad))
	side := r.sideThatStays(far, rdma.Config{}) // for its memory
	var accepted []*rdma.Connection
	var closed [2]int
	server.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		switch state {
		case rdma.Ready:
			accepted = append(accepted, conn)
		case rdma.Closed:
			closed[0]++
		}
	})
	client.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Closed {
			closed[1]++
		}
	})
	for range 2 { // two runs
		accepted, closed = nil, [2]int{}
		clear(got)
		require.NoError(t, server.Start())
		require.NoError(t, client.Start())
		var addr string
		if kind == "by address" {
			l := must(server.Listen(":0", rdma.ListenConfig{}))
			addr = netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String()
		}
		var conns, peers [connections]*rdma.Connection
		connect := func(i int) {
			var y *rdma.Connection
			n := len(accepted)
			if kind == "by address" {
				y = must(client.Dial(addr, rdma.DialConfig{}))
			} else {
				x, ours := must2(server.Export())
				var theirs []byte
				y, theirs = must2(client.Export())
				require.NoError(t, x.Connect(theirs))
				require.NoError(t, y.Connect(ours))
			}
			r.until("they are connected", func() bool { return len(accepted) == n+1 && y.State() == rdma.Ready })
			conns[i], peers[i] = y, accepted[n]
		}
		var all uint64
		sent := map[*rdma.Connection]uint64{}
		at := 0
		send := func(conn *rdma.Connection) {
			n := sent[conn]
			sent[conn]++
			all++
			var err error
			var task *rdma.Task
			if size == 0 {
				task, err = pool.SendImm(conn, nil, uint32(n))
			} else {
				at = (at + 8) % 4096
				binary.BigEndian.PutUint64(side.mem.Bytes()[at:], n)
				task, err = pool.SendImm(conn, side.bufs.Source(side.mem, at, 8), uint32(n))
			}
			require.NoError(t, err)
			require.NoError(t, task.Submit())
		}
		arrived := func() (sum uint64) {
			for _, n := range got {
				sum += n
			}
			return sum
		}
		for i := range connections {
			connect(i)
		}
		for round := range 8 {
			for i, conn := range conns {
				for range i * 4 {
					if send(conn); kind == "UC" { // where a message that finds no receive is gone
						r.until("it is there", func() bool { return arrived() == all })
					}
				}
			}
			r.until("all is sent", func() bool { return pool.Available() == pool.Cap() && arrived() == all })
			require.Empty(t, sends.errs)
			// One connection goes in each round, closed by either end, and another comes.
			i := round % connections
			if round%2 == 0 || kind == "UC" { // which tells no peer
				require.NoError(t, conns[i].Close())
			}
			if round%2 == 1 || kind == "UC" {
				require.NoError(t, peers[i].Close())
			}
			r.until("it is gone, at both ends", func() bool { return closed == [2]int{round + 1, round + 1} })
			connect(i)
		}
		require.NoError(t, server.Stop())
		require.NoError(t, client.Stop())
		r.until("both are Idle", func() bool { return server.State() == pe.Idle && client.State() == pe.Idle })
		require.NoError(t, errors.Join(server.Err(), client.Err()))
	}
	require.NoError(t, server.Close())
	require.NoError(t, client.Close())
}

// A peer that floods its connection takes no receive of another: while the program takes no
// message at all, every connection has all of its receives.
func TestFloodTakesNoReceivesOfOthers(t *testing.T) {
	for _, size := range []int{0, 64} {
		runSimulated(t, fmt.Sprintf("%d bytes", size), 5, func(t *testing.T, s *sim.Sim) { floodsOneConnection(t, s, size) })
	}
}

func floodsOneConnection(t *testing.T, s *sim.Sim, size int) {
	const n, connections = 70, 3 // more than are posted at a time
	cfg := rdma.Config{MaxConnections: connections}
	r := newSimRig(s, cfg, cfg)
	server := &rig{t: t, engine: newEngine(t)}
	server.b = server.sideThatStays(s.Host("c").Device(), cfg)
	var pools [connections]*rdma.Pool
	var sends [connections]outcome[*rdma.Task]
	for i := range pools {
		pools[i] = must(r.a.ctx.Pool(3*n, sends[i].ok, sends[i].bad))
	}
	got := map[*rdma.Connection]int{}
	require.NoError(t, server.b.ctx.ReceivePerConnection(n, size, func(m *rdma.Message) { got[m.Connection()]++ }))
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, server.b.ctx.Start())
	both := func(what string, done func() bool) {
		t.Helper()
		r.until(what, func() bool {
			must(server.engine.Progress())
			return done()
		})
	}
	var conns, peers []*rdma.Connection
	for range connections {
		a, ours := must2(r.a.ctx.Export())
		b, theirs := must2(server.b.ctx.Export())
		require.NoError(t, a.Connect(theirs))
		require.NoError(t, b.Connect(ours))
		conns, peers = append(conns, a), append(peers, b)
		both("they are connected", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
	}
	send := func(i int) {
		var data *bufinv.Buf
		if size > 0 {
			data = r.a.bufs.Source(r.a.mem, 0, size)
		}
		require.NoError(t, must(pools[i].SendImm(conns[i], data, 1)).Submit())
	}
	for range 3 * n {
		send(0)
	}
	r.drive(10 * time.Millisecond)
	require.Len(t, sends[0].done, n, "the flood has its own receives, and no other")
	for i := 1; i < connections; i++ {
		for range n {
			send(i)
		}
	}
	r.until("all others have arrived", func() bool { return len(sends[1].done) == n && len(sends[2].done) == n })
	require.Empty(t, got)
	both("so has the flood", func() bool { return got[peers[0]] == 3*n && len(sends[0].done) == 3*n })
	require.Equal(t, map[*rdma.Connection]int{peers[0]: 3 * n, peers[1]: n, peers[2]: n}, got)
	for i := range sends {
		require.Empty(t, sends[i].errs)
		require.NoError(t, rdma.FreeAll(sends[i].done))
	}
	require.NoError(t, server.b.ctx.Stop())
	both("the server is Idle", func() bool { return server.b.ctx.State() == pe.Idle })
}

func TestReceivePerConnectionRefusals(t *testing.T) {
	f := func(*rdma.Message) {}
	c := must(rdma.New(openDevice(t), rdma.Config{MaxConnections: 1 << 16}))
	for name, err := range map[string]error{
		"n":    c.ReceivePerConnection(0, 8, f),
		"many": c.ReceivePerConnection(1<<16+1, 8, f),
		"size": c.ReceivePerConnection(1, -1, f),
		"all":  c.ReceivePerConnection(2, math.MaxInt/2, f),
	} {
		assert.ErrorIs(t, err, rdma.ErrRange, name)
		assert.ErrorContains(t, err, `context "rdma"`)
	}
	require.ErrorIs(t, c.ReceivePerConnection(1, 8, nil), rdma.ErrInvalid)
	require.NoError(t, c.ReceivePerConnection(68, 0, f))
	require.ErrorIs(t, c.ReceivePerConnection(68, 0, f), rdma.ErrInvalid)
	require.ErrorIs(t, c.Receive(68, 0, f), rdma.ErrInvalid)
	_, err := c.ReceivePool(1, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {})
	require.ErrorIs(t, err, rdma.ErrInvalid)
	require.NoError(t, newEngine(t).Connect(c))
	err = c.Start()
	require.ErrorIs(t, err, rdma.ErrRange)
	require.ErrorContains(t, err, "lower Config.MaxConnections, or lower the number in ReceivePerConnection")
	require.NoError(t, c.Close())

	c = must(rdma.New(openDevice(t), rdma.Config{}))
	_ = must(c.ReceivePool(1, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	require.ErrorIs(t, c.ReceivePerConnection(1, 8, f), rdma.ErrInvalid)
	require.NoError(t, c.Close())
}

// However a device fails, connections with receives of their own end, and their buffers are not
// freed while the device may write to them. Completions that come later count for no other
// connection, even one with the same place and queue pair number.
func TestReceivesPerConnectionEndWhenTheDeviceLetsGo(t *testing.T) {
	for how, destroy := range map[string]error{"destroyed": nil, "gone": faultydevice.ErrGone, "not destroyed": faultydevice.ErrBroken} {
		for _, size := range []int{0, 64} {
			t.Run(fmt.Sprintf("%s, %d bytes", how, size), func(t *testing.T) { receivesEnd(t, destroy, size) })
		}
	}
}

func receivesEnd(t *testing.T, destroy error, size int) {
	const n = 4
	dev := openFaulty(t)
	r := &rig{t: t, engine: newEngine(t)}
	r.a, r.b = r.sideThatStays(dev, rdma.Config{CloseTimeout: rdma.None}), r.sideThatStays(openSoft(t), rdma.Config{MaxConnections: 2})
	r.a.ctx.SetDrainTimeout(time.Millisecond)
	got := map[*rdma.Connection]int{}
	require.NoError(t, r.a.ctx.ReceivePerConnection(n, size, func(m *rdma.Message) { got[m.Connection()]++ }))
	sends := outcome[*rdma.Task]{then: func(task *rdma.Task) { assert.NoError(t, task.Free()) }}
	pool := must(r.b.ctx.Pool(2*n, sends.ok, sends.bad))
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	link := func() (a, b *rdma.Connection) {
		a, b = r.link()
		r.until("they are connected", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
		return a, b
	}
	old, peer := link()
	number := old.QPN()
	for range n {
		require.NoError(t, must(pool.SendImm(peer, nil, 1)).Submit())
	}
	r.until("the device has taken them", func() bool { return got[old] == n && sends.count() == n })
	dev.WithholdCompletions()
	for range n {
		require.NoError(t, must(pool.SendImm(peer, nil, 1)).Submit())
	}
	r.until("they have arrived, and nobody knows", func() bool { return sends.count() == 2*n })
	require.Empty(t, sends.errs)
	dev.Set(func(h *faultydevice.Hooks) {
		h.DestroyQP = func(qp verbs.QP) error {
			if destroy != nil {
				return destroy
			}
			return qp.Close()
		}
	})
	require.NoError(t, old.Close())
	r.until("it is closed", func() bool { return r.a.closed() == 1 })
	require.Equal(t, n, got[old])
	if destroy == faultydevice.ErrBroken {
		r.until("the context ends", func() bool { return r.a.ctx.State() == pe.Idle })
		require.ErrorIs(t, r.a.ctx.Err(), rdma.ErrDevice)
		require.ErrorContains(t, r.a.ctx.Err(), rdma.ErrMemoryKept.Error())
		return // dev.Close finds what was kept
	}
	dev.Set(func(h *faultydevice.Hooks) { h.QPN, h.DestroyQP = func(verbs.QP) uint32 { return number }, nil })
	next, _ := must2(r.a.ctx.Export())
	dev.Heal()
	for range 100 {
		must(r.engine.Progress())
	}
	require.Equal(t, map[*rdma.Connection]int{old: n}, got, "late completions")
	require.Equal(t, rdma.Exported, next.State())
	require.NoError(t, next.Close())
	r.until("it is closed", func() bool { return r.a.closed() == 2 })
	a, b := link()
	for range n {
		require.NoError(t, must(pool.SendImm(b, nil, 1)).Submit())
	}
	r.until("the next one has all of its receives", func() bool { return got[a] == n && sends.count() == 3*n })
	require.Empty(t, sends.errs)
}
