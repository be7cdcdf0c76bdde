package rdma

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pathmtu"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// bridge connects two queue pairs with path MTUs of their own.
func (n *peersRig) bridge(atServer, atPeer verbs.MTU) (server, peer *Connection) {
	n.t.Helper()
	server, peer = must(n.server.Bridge()), must(n.peer.Bridge())
	up := func(own, other *Connection, mtu verbs.MTU) {
		gid := other.ctx.GID()
		qp := own.QP()
		require.NoError(n.t, qp.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive, PathMTU: mtu, DestQPN: other.QPN(), MaxDestReadAtomic: 1, MinRNRTimer: 1,
			Address: verbs.AddressAttr{DGID: gid.GID, Port: 1, UDPPort: gid.UDPPort}}, verbs.RCToRTR))
		require.NoError(n.t, qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxInitReadAtomic: 1}, verbs.RCToRTS))
	}
	up(server, peer, atServer)
	up(peer, server, atPeer)
	require.NoError(n.t, server.Established())
	require.NoError(n.t, peer.Established())
	return server, peer
}

// Where the ends of a connection that the program has made use different path MTUs, both
// say so, and how large the own one is.
func TestDifferentMTUs(t *testing.T) {
	for _, mtus := range [][2]verbs.MTU{{1024, 4096}, {4096, 1024}} {
		sim.Check(t, 2, func(s *sim.Sim) { testDifferentMTUs(s, mtus) })
	}
}

func testDifferentMTUs(s *sim.Sim, mtus [2]verbs.MTU) {
	t := s.TB
	n := newSimPeersRig(s, Config{Permissions: mmap.RemoteRead | mmap.RemoteWrite})
	remote := must(mmap.Alloc(n.server.Device(), 1<<16, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite))
	local := must(mmap.Alloc(n.peer.Device(), 1<<16, mmap.LocalReadWrite))
	target := must(mmap.Import(n.peer.Device(), must(remote.Export(n.server.Device()))))
	server, peer := n.bridge(mtus[0], mtus[1])
	require.Contains(t, peer.noResponseAdvice(), "set the path MTU of the queue pairs of both ends below")
	task := must(n.writes.Write(peer, n.bufs.Source(local, 0, 10000), n.bufs.Target(target, 0, 10000)))
	require.NoError(t, task.Submit())
	n.until(func() bool { return n.completed == 1 && server.State() == Failed })
	require.ErrorContains(t, n.ended, fmt.Sprintf("the path MTUs of the two ends differ: this end has %d", mtus[1]))
	require.ErrorContains(t, server.Err(), fmt.Sprintf("the path MTUs of the two ends differ: this end has %d", mtus[0]))
	require.NoError(t, target.Close())
}

// Where the system knows that the way carries less than a packet of the connection, that is
// the reason, and what would fit is the advice; else the length is a hint.
func TestPacketsTooLongForTheWay(t *testing.T) {
	n := newPeersRig(t)
	_, peer, _ := n.connect()
	t.Cleanup(func() { pathMTU = pathmtu.Of })
	of := func(carries int, known bool) string {
		pathMTU = func(own, other netip.Addr) (int, bool) {
			require.Equal(t, peer.LocalAddr().Addr(), own)
			require.Equal(t, peer.PeerAddr().Addr(), other)
			return carries, known
		}
		return (&TaskError{Op: OpWrite, Status: verbs.StatusRetryExceeded, Connection: peer, advice: peer.adviceFor(OpWrite, verbs.StatusRetryExceeded)}).Error()
	}
	require.EqualValues(t, 4096, peer.MTU())
	require.Contains(t, of(1400, true), "packets of 4160 bytes are too long for the route to "+peer.PeerAddr().Addr().String()+", which carries 1400 bytes; set Config.Path.MTU to 1024 at either end")
	require.Contains(t, of(200, true), "no path MTU fits")
	for _, known := range []bool{true, false} {
		require.Contains(t, of(9000, known), "check that the peer is alive and that UDP packets get through, including those of 4160 bytes")
	}
}

// A connection whose peer does not come says where peers of other kinds look for this end.
func TestTimeoutNamesThePort(t *testing.T) {
	n := newPeersRig(t)
	conn, _, err := n.peer.Export()
	require.NoError(t, err)
	port := n.peer.port.State()
	port.GID.UDPPort = 4791
	require.NotContains(t, conn.timeoutError(time.Second).Error(), "UDP port")
	port.GID.UDPPort = 32771
	require.ErrorContains(t, conn.timeoutError(time.Second), "this end uses UDP port 32771")
}
