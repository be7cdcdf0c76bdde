package await_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	memorySize = 1 << 20
	everything = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
)

// rig is two contexts on two devices and one engine: a sends to b.
type rig struct {
	engine     *pe.Engine
	a, b       *rdma.Connections
	conn, peer *rdma.Connection
	memA, memB *mmap.Map
	remote     *mmap.Map // memB, as a sees it
	bufs       *bufinv.Inventory
}

// newRig makes all but the connection. The engine is not driven.
func newRig(t testing.TB) *rig {
	t.Helper()
	cfg := rdma.Config{Permissions: everything, EndWithLastConnection: true}
	return newRigWith(t, cfg, cfg)
}

func newRigWith(t testing.TB, cfgA, cfgB rdma.Config) *rig {
	t.Helper()
	r := &rig{}
	open := func(name string, cfg rdma.Config) (verbs.Device, *rdma.Connections, *mmap.Map) {
		dev := openDevice(t, name)
		cfg.Name = name
		c, err := rdma.New(dev, cfg)
		require.NoError(t, err)
		m, err := mmap.Alloc(dev, memorySize, everything)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return dev, c, m
	}
	devA, a, memA := open("a", cfgA)
	devB, b, memB := open("b", cfgB)
	r.a, r.b, r.memA, r.memB = a, b, memA, memB
	desc, err := memB.Export(devB)
	require.NoError(t, err)
	r.remote, err = mmap.Import(devA, desc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.remote.Close()) })
	r.bufs, err = bufinv.New(256)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.bufs.Close(), "buffers leaked") })
	return r
}

// openDevice opens the device of a test, or that of a host of the simulation that t is.
func openDevice(t testing.TB, host string) verbs.Device {
	if s, simulated := t.(*sim.Sim); simulated {
		return s.Host(host).Device()
	}
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// spawn starts a goroutine. In a simulation it runs in turn with the others, so that two runs of a
// seed are equal.
func spawn(t testing.TB, f func()) {
	if s, simulated := t.(*sim.Sim); simulated {
		s.Host("a").Go(f)
		return
	}
	go f()
}

// connect starts both contexts on a driven engine, and connects them.
func (r *rig) connect(t testing.TB) {
	t.Helper()
	if r.engine == nil {
		r.engine = drive(t, r.a, r.b)
		t.Cleanup(func() {
			require.NoError(t, await.Stop(background, r.a))
			require.NoError(t, await.Stop(background, r.b))
		})
	}
	require.NoError(t, await.Func(background, r.engine, func() error {
		require.NoError(t, r.a.Start())
		require.NoError(t, r.b.Start())
		var ours, theirs []byte
		var err error
		r.conn, ours, err = r.a.Export()
		require.NoError(t, err)
		r.peer, theirs, err = r.b.Export()
		require.NoError(t, err)
		require.NoError(t, r.conn.Connect(theirs))
		return r.peer.Connect(ours)
	}))
	require.NoError(t, await.State(background, r.a, pe.Running))
	require.NoError(t, await.State(background, r.b, pe.Running))
}
