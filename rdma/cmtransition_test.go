package rdma

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// dialler is a context that dials another, on a device whose kernel does not find the peer until
// up is set.
type dialler struct {
	t              *testing.T
	engine         *pe.Engine
	client, server *Connections
	conn           *Connection
	reported       []ConnectionState // of conn
	looking, up    atomic.Bool
	answer         chan struct{} // closed: the kernel answers
}

func newDialler(t *testing.T) *dialler {
	near, far := must(faultydevice.Open(soft.Config{})), must(soft.Open(soft.Config{}))
	d := &dialler{t: t, engine: pe.New(pe.Config{}), answer: make(chan struct{})}
	d.client = must(New(near, Config{Engine: d.engine, Name: "client"}))
	d.server = must(New(far, Config{Engine: d.engine, Name: "server", MaxConnections: 4}))
	near.Neighbours(func(verbs.AddressAttr) error {
		if d.up.Load() {
			return nil
		}
		d.looking.Store(true)
		<-d.answer
		return faultydevice.ErrDown
	})
	d.client.OnConnection(func(_ *Connection, state ConnectionState, _ error) { d.reported = append(d.reported, state) })
	require.NoError(t, d.client.Start())
	require.NoError(t, d.server.Start())
	l := must(d.server.Listen(":0", ListenConfig{}))
	d.conn = must(d.client.Dial(netip.AddrPortFrom(d.server.GID().GID.Addr(), l.Addr().Port()).String(), DialConfig{}))
	d.until("the kernel looks", d.looking.Load)
	t.Cleanup(func() {
		require.NoError(t, d.engine.Close())
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
	return d
}

func (d *dialler) until(what string, done func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !done(); {
		require.True(d.t, time.Now().Before(deadline), what)
		must(d.engine.Progress())
	}
}

// event has the connection manager report something of the connection's ID.
func (d *dialler) event(e verbs.CMEvent) {
	e.ID = d.conn.establishment.(*dial).id
	d.client.manager.event(&e)
}

// Events that came while the kernel resolved the peer's address belong to that attempt. When
// the first of them ends the attempt, the others are ignored, and the next attempt begins with
// a queue pair that is not in transition.
func TestEventsAfterATransition(t *testing.T) {
	for name, reason := range map[string]verbs.CMRejectReason{"stale connection": verbs.CMRejectStaleConnection, "time-out": verbs.CMRejectTimeout} {
		t.Run(name, func(t *testing.T) {
			d := newDialler(t)
			d.event(verbs.CMEvent{Type: verbs.CMFailed, Err: &verbs.CMError{Step: verbs.CMStepConnect, Reason: reason, Err: verbs.ErrRejected}})
			d.event(verbs.CMEvent{Type: verbs.CMConnectResponse})
			d.up.Store(true)
			close(d.answer)
			d.until("the attempt is over", func() bool { return d.conn.DialError() != nil })
			require.True(t, d.conn.transition.retry.At().IsZero(), "the old transition goes on")
			d.until("it is connected", func() bool { return d.conn.State() == Ready })
			require.Equal(t, []ConnectionState{Connecting, Ready}, d.reported)
		})
	}
}

// If the peer disconnects before the queue pair is up, the connection was never Ready.
func TestPeerLeavesWhileTheKernelLooks(t *testing.T) {
	d := newDialler(t)
	close(d.answer)
	d.until("the kernel has not found it", func() bool { return !d.conn.transition.running })
	d.event(verbs.CMEvent{Type: verbs.CMDisconnected})
	d.until("it is closed", func() bool { return len(d.reported) >= 2 })
	require.Equal(t, []ConnectionState{Connecting, Closed}, d.reported)
	require.ErrorIs(t, d.conn.Err(), ErrPeerClosed)
}
