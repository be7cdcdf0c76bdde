package rdma_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/faultydevice"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// gate holds up calls until it is opened.
type gate struct {
	t      *testing.T
	opened chan struct{}
}

func newGate(t *testing.T) *gate { return &gate{t, make(chan struct{})} }

func (g *gate) open() { close(g.opened) }

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

	var writes outcome[*rdma.WriteTask]
	pool := must(r.a.ctx.WritePool(1, writes.ok, writes.bad))
	r.connect(1)
	r.until("the peer of the context has learned", func() bool { return client.State() == pe.Idle })
	task := must(pool.Alloc(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)))
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
	for _, c := range []*rdma.Context{stopping, client} {
		require.NoError(t, c.Close())
	}
}
