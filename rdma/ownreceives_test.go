package rdma_test

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// openUnshared opens a device without shared receive queues.
func openUnshared(t *testing.T) *faultydevice.Device {
	t.Helper()
	dev := openFaulty(t)
	dev.NoSharedReceiveQueues()
	return dev
}

// On a device without shared receive queues, each connection has a share of the receives, which
// others get when it is gone. Every message arrives once, in order, with its bytes.
func TestReceivesWithoutASharedQueue(t *testing.T) {
	for _, way := range []string{"by descriptors", "by address"} {
		for _, kind := range []string{"tasks", "messages"} {
			t.Run(way+", "+kind, func(t *testing.T) { receivesUnshared(t, way, kind) })
		}
	}
}

func receivesUnshared(t *testing.T, way, kind string) {
	const connections, receives, size = 4, 9, 64
	r := &rig{t: t, engine: newEngine(t)}
	dev, far := openUnshared(t), openSoft(t)
	server := must(rdma.New(dev, rdma.Config{Engine: r.engine, Name: "server", MaxConnections: connections}))
	client := must(rdma.New(far, rdma.Config{Engine: r.engine, Name: "client", MaxConnections: connections}))
	require.True(t, new(server.Capabilities()).Supports(rdma.OpReceive))
	mem, source := must(mmap.Alloc(dev, receives*size, everything)), must(mmap.Alloc(far, 4096, everything))
	bufs := must(bufinv.New(256))

	got := map[*rdma.Connection]uint64{} // messages, which are numbered
	took := func(conn *rdma.Connection, data []byte) {
		require.Len(t, data, 8)
		require.Equal(t, got[conn], binary.BigEndian.Uint64(data))
		got[conn]++
	}
	var tasks []*rdma.ReceiveTask
	flushed := 0
	if kind == "messages" {
		require.NoError(t, server.Receive(receives, size, func(m *rdma.Message) { took(m.Connection(), m.Bytes()) }))
	} else {
		pool := must(server.ReceivePool(receives, func(task *rdma.ReceiveTask) {
			took(task.Connection(), task.Destination().Bytes())
			require.NoError(t, task.Submit())
		}, func(task *rdma.ReceiveTask, err error) {
			assert.ErrorIs(t, err, rdma.ErrFlushed)
			assert.Equal(t, pe.Stopping, server.State(), "receives outlive connections")
			flushed++
			assert.NoError(t, task.Free())
		}))
		require.NoError(t, server.Start())
		for i := range receives {
			task := must(pool.Alloc(bufs.Target(mem, i*size, size)))
			require.NoError(t, task.Submit())
			tasks = append(tasks, task)
		}
	}
	var sends outcome[*rdma.Task]
	sends.then = func(task *rdma.Task) { _ = task.Free() }
	sendPool := must(client.Pool(64, sends.ok, sends.bad))
	if kind == "messages" {
		require.NoError(t, server.Start())
	}
	require.NoError(t, client.Start())
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
	var addr string
	if way == "by address" {
		l := must(server.Listen(":0", rdma.ListenConfig{}))
		addr = netip.AddrPortFrom(server.GID().GID.Addr(), l.Addr().Port()).String()
	}
	connect := func() *rdma.Connection {
		var y *rdma.Connection
		n := len(accepted)
		if way == "by address" {
			y = must(client.Dial(addr, rdma.DialConfig{}))
		} else {
			x, ours := must2(server.Export())
			var theirs []byte
			y, theirs = must2(client.Export())
			require.NoError(t, x.Connect(theirs))
			require.NoError(t, y.Connect(ours))
		}
		r.until("they are connected", func() bool { return len(accepted) == n+1 && y.State() == rdma.Ready })
		return y
	}
	sent := map[*rdma.Connection]uint64{}
	at := 0
	send := func(conn *rdma.Connection) {
		at = (at + 8) % source.Len() // a message that is repeated is read again
		binary.BigEndian.PutUint64(source.Bytes()[at:], sent[conn])
		sent[conn]++
		require.NoError(t, must(sendPool.Send(conn, bufs.Source(source, at, 8))).Submit())
	}
	var conns []*rdma.Connection
	for range connections {
		conns = append(conns, connect())
	}
	for round := range 12 {
		// More at a time than one connection has receives, and some have nothing.
		for i, conn := range conns {
			for range (i * 3) % 7 {
				send(conn)
			}
		}
		r.until("all is sent", func() bool { return sendPool.Available() == sendPool.Cap() })
		require.Empty(t, sends.errs)
		// One connection goes in each round, and another comes.
		gone := conns[round%connections]
		require.NoError(t, gone.Close())
		r.until("it is gone, at both ends", func() bool { return closed == [2]int{round + 1, round + 1} })
		conns[round%connections] = connect()
	}
	var all, arrived uint64
	for _, n := range sent {
		all += n
	}
	for _, n := range got {
		arrived += n
	}
	require.Equal(t, all, arrived)
	require.NoError(t, server.Stop())
	require.NoError(t, client.Stop())
	r.until("both are Idle", func() bool { return server.State() == pe.Idle && client.State() == pe.Idle })
	require.Equal(t, len(tasks), flushed)
	for _, c := range []interface{ Close() error }{server, client, bufs, mem, source} {
		require.NoError(t, c.Close())
	}
}

// No receives are posted to a queue pair while a helper has it: drivers hold a lock meanwhile.
func TestReceivesWaitForTheKernel(t *testing.T) {
	dev := openUnshared(t)
	r := newRigOn(t, dev, openSoft(t), rdma.Config{}, rdma.Config{})
	receives := outcome[*rdma.ReceiveTask]{then: func(task *rdma.ReceiveTask) { assert.NoError(t, task.Free()) }}
	pool := must(r.a.ctx.ReceivePool(4, receives.ok, receives.bad))
	looking := newGate(t)
	var found atomic.Int32 // 1: the kernel looks, 2: it has found the peer
	dev.Neighbours(func(verbs.AddressAttr) error {
		found.Store(1)
		looking.pass()
		found.Store(2)
		return nil
	})
	posted := 0
	dev.Set(func(h *faultydevice.Hooks) {
		h.PostRecv = func(queue faultydevice.Receives, wrs []verbs.RecvWR) (int, error) {
			assert.NotEqual(t, int32(1), found.Load(), "the kernel has the queue pair")
			n, err := queue.PostRecv(wrs)
			posted += n
			return n, err
		}
	})
	require.NoError(t, r.a.ctx.Start())
	require.NoError(t, r.b.ctx.Start())
	submit := func(i int) {
		require.NoError(t, must(pool.Alloc(r.a.bufs.Target(r.a.mem, 64*i, 64))).Submit())
	}
	submit(0)
	a, b := r.link()
	r.until("the kernel looks", func() bool { return found.Load() == 1 })
	submit(1)
	for range 100 {
		must(r.engine.Progress())
	}
	require.Equal(t, 1, posted)
	looking.open()
	r.until("they are connected", func() bool { return a.State() == rdma.Ready && b.State() == rdma.Ready })
	r.until("the other one is posted", func() bool { return posted == 2 })
}

// Fewer receives than connections would leave some connections without any receive.
func TestTooFewReceivesWithoutASharedQueue(t *testing.T) {
	c := must(rdma.New(openUnshared(t), rdma.Config{Engine: newEngine(t), MaxConnections: 4}))
	require.NoError(t, c.Receive(3, 64, func(*rdma.Message) {}))
	err := c.Start()
	require.ErrorIs(t, err, rdma.ErrRange)
	require.ErrorContains(t, err, "3 receives")
	require.ErrorContains(t, err, "Config.MaxConnections, 4")
	require.NoError(t, c.Close())
}
