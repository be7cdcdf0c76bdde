package rdma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// peersRig is a server with connections to several peers, and one of these peers, which
// writes to the address in its descriptor.
type peersRig struct {
	t            *testing.T
	engine       *pe.Engine
	server, peer *Connections
	memory       *mmap.Map
	bufs         bufinv.Inventory
	writes       *Pool
	ended        error // of the last write
	completed    int
	keep         bool     // tasks are not freed
	sim          *sim.Sim // of the devices; nil: they are not simulated
}

func newPeersRig(t *testing.T) *peersRig { return newPeersRigWith(t, Config{}) }

func newPeersRigWith(t *testing.T, cfg Config) *peersRig {
	open := func() verbs.Device {
		dev := must(soft.Open(soft.Config{}))
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		return dev
	}
	return newPeersRigOn(t, open(), open(), cfg)
}

// newSimPeersRig makes one on the hosts server and peer of a simulation.
func newSimPeersRig(s *sim.Sim, cfg Config) *peersRig {
	n := newPeersRigOn(s.TB.(*testing.T), s.Host("server").Device(), s.Host("peer").Device(), cfg)
	n.sim = s
	return n
}

func newPeersRigOn(t *testing.T, server, peer verbs.Device, cfg Config) *peersRig {
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = 64
	}
	n := &peersRig{t: t, engine: pe.New(pe.Config{})}
	open := func(name string, dev verbs.Device) *Connections {
		cfg.Engine, cfg.Name = n.engine, name
		ctx := must(New(dev, cfg))
		t.Cleanup(func() {
			require.NoError(t, ctx.Stop())
			n.until(func() bool { return ctx.State() == pe.Idle })
			require.NoError(t, ctx.Close())
		})
		return ctx
	}
	t.Cleanup(func() { require.NoError(t, n.engine.Close()) })
	n.server, n.peer = open("server", server), open("peer", peer)
	n.memory = must(mmap.Alloc(n.peer.Device(), 8, mmap.LocalReadWrite))
	n.writes = must(n.peer.Pool(1, func(task *Task) { n.wrote(task, nil) }, n.wrote))
	require.NoError(t, n.server.Start())
	require.NoError(t, n.peer.Start())
	return n
}

func (n *peersRig) wrote(task *Task, err error) {
	n.ended = err
	n.completed++
	if !n.keep {
		require.NoError(n.t, task.Free())
	}
}

func (n *peersRig) until(done func() bool) {
	n.t.Helper()
	idle := 0
	for limit := time.Now().Add(5 * time.Minute); !done(); {
		if idle++; must(n.engine.Progress()) > 0 {
			idle = 0
		}
		if n.sim != nil && idle > 100 {
			n.sim.Run(time.Millisecond)
		}
		require.True(n.t, time.Now().Before(limit), "it never happened")
	}
}

// connect connects the peer to the server, and returns what the server's descriptor says.
func (n *peersRig) connect() (atServer, atPeer *Connection, e endpoint) {
	n.t.Helper()
	atServer, desc, err := n.server.Export()
	require.NoError(n.t, err)
	atPeer, own, err := n.peer.Export()
	require.NoError(n.t, err)
	require.NoError(n.t, atServer.Connect(own))
	require.NoError(n.t, atPeer.Connect(desc))
	n.until(func() bool { return atServer.State() == Ready && atPeer.State() == Ready })
	return atServer, atPeer, must(decodeEndpoint(desc))
}

// write has the peer write 8 bytes to an address of the server's, and returns the outcome.
func (n *peersRig) write(conn *Connection, addr uint64, key uint32) error {
	n.t.Helper()
	target := must(mmap.FromKey(n.peer.Device(), addr, 8, key, mmap.RemoteWrite))
	defer func() { require.NoError(n.t, target.Close()) }()
	before := n.completed
	task := must(n.writes.Write(conn, n.bufs.Source(n.memory, 0, 8), n.bufs.Target(target, 0, 8)))
	require.NoError(n.t, task.Submit())
	n.until(func() bool { return n.completed > before })
	return n.ended
}

// The key in a descriptor opens the word of its own connection and no other's: a peer
// cannot overwrite the ready signals of others, whose connections would hang.
func TestKeyOfAReadyWordOpensNoOther(t *testing.T) {
	n := newPeersRig(t)
	_, peer, own := n.connect()
	require.NoError(t, n.write(peer, own.readyAddr, own.readyKey), "his own he may write")

	victim, desc, err := n.server.Export()
	require.NoError(t, err)
	other := must(decodeEndpoint(desc))
	require.NotEqual(t, own.readyKey, other.readyKey)
	copy(n.memory.Bytes(), "clobber!")
	require.ErrorIs(t, n.write(peer, other.readyAddr, own.readyKey), ErrRemoteAccess)
	require.Zero(t, *victim.establishment.(*rcSignal).word(), "nothing has been written")
}

// When a connection has been destroyed, its key opens nothing any more, although the next
// connection has the same word.
func TestKeyOfAReadyWordEndsWithItsConnection(t *testing.T) {
	n := newPeersRig(t)
	first, _, old := n.connect()
	require.NoError(t, first.Close())
	n.until(func() bool { return len(n.server.free) == len(n.server.slots) })
	_, peer, next := n.connect()
	require.Equal(t, old.readyAddr, next.readyAddr, "the place has been taken again")
	require.ErrorIs(t, n.write(peer, old.readyAddr, old.readyKey), ErrRemoteAccess)
}

// A device that does not register the word fails the export, and nothing stays behind.
func TestReadyWordIsNotRegistered(t *testing.T) {
	dev := must(faultydevice.Open(soft.Config{}))
	engine := pe.New(pe.Config{})
	c := must(New(dev, Config{Engine: engine}))
	require.NoError(t, c.Start())
	dev.Set(func(h *faultydevice.Hooks) { h.RegMR = func([]byte) error { return verbs.ErrLimit } })
	for range 2 * c.set.MaxConnections {
		_, _, err := c.Export()
		require.ErrorIs(t, err, verbs.ErrLimit)
	}
	dev.Heal()
	conn, _, err := c.Export()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, c.Stop())
	for c.State() != pe.Idle {
		must(engine.Progress())
	}
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close(), "something of the device leaked")
}

// Tasks that wait go over to the queue pair that takes the place of one that the peer believes
// to be connected.
func TestTasksWaitWhileTheQueuePairIsReplaced(t *testing.T) {
	n := newPeersRig(t)
	n.until(func() bool { return n.server.State() == pe.Running && n.peer.State() == pe.Running })
	listener := must(n.server.Listen(":0", ListenConfig{}))
	addr := netip.AddrPortFrom(n.server.GID().GID.Addr(), listener.Addr().Port()).String()
	require.NoError(t, listener.Close())
	conn := must(n.peer.Dial(addr, DialConfig{}))
	require.NoError(t, must(n.writes.Write(conn, nil, nil)).Submit())
	require.NoError(t, conn.replaceQP())
	must(n.server.Listen(addr, ListenConfig{}))
	n.until(func() bool { return n.completed == 1 })
	require.NoError(t, n.ended)
}
