package rdma

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// dialled makes a connection of the peer's to the server, by address.
func (n *peersRig) dialled(cfg DialConfig) *Connection {
	n.t.Helper()
	l, err := n.server.Listen(":0", ListenConfig{})
	require.NoError(n.t, err)
	conn, err := n.peer.Dial(netip.AddrPortFrom(n.server.GID().GID.Addr(), l.Addr().Port()).String(), cfg)
	require.NoError(n.t, err)
	return conn
}

// A peer that closes the connection and then exits has closed it, whichever of the two becomes
// known first.
func TestPeerClosesAndExits(t *testing.T) {
	for name, exitFirst := range map[string]bool{"the closing first": false, "the exit first": true} {
		t.Run(name, func(t *testing.T) {
			sim.Check(t, 2, func(s *sim.Sim) {
				n := newSimPeersRig(s, Config{})
				conn := n.dialled(DialConfig{})
				n.until(func() bool { return conn.State() == Ready })
				c := n.peer
				c.events.eventCame(verbs.Event{Type: verbs.EventPeerGone, QPN: conn.lane.Num()})
				if exitFirst {
					c.events.takeEvents()
				}
				c.manager.event(&verbs.CMEvent{Type: verbs.CMDisconnected, ID: conn.establishment.(*dial).id})
				n.until(func() bool { return !conn.state().usable() })
				assert.Equal(t, Closed, conn.State())
				require.ErrorIs(t, conn.Err(), ErrPeerClosed)
				require.NotErrorIs(t, conn.Err(), ErrPeerDead)
			})
		})
	}
}

// The private data with which the peer ends a connection reaches the program, also while it
// has not called Established.
func TestDisconnectDataBeforeEstablished(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		n := newSimPeersRig(s, Config{})
		conn := n.dialled(DialConfig{OnResponse: func(*Connection) {}})
		n.until(func() bool { return conn.establish != nil })
		n.peer.manager.event(&verbs.CMEvent{
			Type: verbs.CMDisconnected, ID: conn.establishment.(*dial).id, Param: verbs.CMParam{PrivateData: []byte("why")},
		})
		n.until(func() bool { return conn.State() == Closed })
		assert.Equal(t, "why", string(conn.DisconnectData()))
	})
}

// A connection that waits for its peer to confirm the end wakes nobody until its time is over,
// unless its device does not report what the peer does.
func TestClosingConnectionsWakeNobody(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		n := newSimPeersRig(s, Config{})
		dialled := n.dialled(DialConfig{})
		n.until(func() bool { return dialled.State() == Ready })
		_, exported, _ := n.connect()
		_, unwatched, _ := n.connect()
		signal := unwatched.establishment.(*rcSignal)
		signal.cancel()
		signal.cancel = nil
		s.Cut(s.Host("peer"), s.Host("server"))
		end := n.peer.host.Now().Add(n.peer.set.CloseTimeout)
		for _, conn := range []*Connection{dialled, exported, unwatched} {
			require.NoError(t, conn.Close())
			require.True(t, conn.life.Phase().Closing())
		}
		require.Equal(t, end, dialled.deadline.At())
		require.Equal(t, end, exported.deadline.At())
		require.True(t, unwatched.deadline.At().Before(end))
		s.Heal()
	})
}
