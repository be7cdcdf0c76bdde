package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

// Changing the faults of a peer releases its held packets, even those held twice, and no
// others.
func TestFaultsChangeWhilePacketsAreHeld(t *testing.T) {
	late := faults.Faults{Delay: time.Minute, Reorder: 1}
	x, y := openPair(t, Config{}, Config{Faults: late}, 4096)
	x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
	held := func() bool {
		y.dev.mu.Lock()
		defer y.dev.mu.Unlock()
		return y.dev.endpoints[0].faults.Deadline() != 0
	}
	x.until("the write is on its way", held)
	for _, f := range []faults.Faults{{Loss: 1}, {}} {
		require.NoError(t, y.dev.SetPeerFaults(netip.MustParseAddr("127.11.6.4"), f))
		require.True(t, held())
	}
	require.NoError(t, y.dev.SetFaults(faults.Faults{}))
	require.Equal(t, []verbs.Status{verbs.StatusSuccess}, statuses(x.wait(1)))
}

// set sets the faults of packets from the peer.
func (s *side) set(peer *side, f faults.Faults) {
	s.t.Helper()
	require.NoError(s.t, s.dev.SetPeerFaults(peer.dev.endpoints[0].socket.Addr().Addr(), f))
}

// Connections use shared memory while there are no faults, even if there were faults before.
func TestFaultsHeal(t *testing.T) {
	healed := func(t *testing.T, x, y *side) {
		awaitSharedMemory(x, y)
		before := localCounter(x, "local_sent_pkts")
		exchange(t, x, y, 60_000)
		require.Greater(t, localCounter(x, "local_sent_pkts"), before)
	}
	bad := faults.Faults{Loss: 0.05, Seed: 1}
	t.Run("set later", func(t *testing.T) {
		x, y := openLocalPair(t, 1<<17)
		for range 3 {
			require.NoError(t, x.dev.SetFaults(bad))
			require.NoError(t, y.dev.SetFaults(bad))
			require.Equal(t, verbs.PathNetwork, x.pathKind())
			y.until("the channel has ended", func() bool { return y.pathKind() == verbs.PathNetwork })
			exchange(t, x, y, 60_000)
			require.NoError(t, x.dev.SetFaults(faults.Faults{}))
			require.NoError(t, y.dev.SetFaults(faults.Faults{}))
			healed(t, x, y)
		}
	})
	t.Run("from the beginning", func(t *testing.T) {
		x, y := openAdaptive(t, Config{Faults: bad}, 1<<17), openAdaptive(t, Config{}, 1<<17)
		x.connect(y)
		y.connect(x)
		exchange(t, x, y, 60_000)
		require.Equal(t, []verbs.Path{verbs.PathNetwork, verbs.PathNetwork}, []verbs.Path{x.pathKind(), y.pathKind()})
		require.NoError(t, x.dev.SetFaults(faults.Faults{}))
		healed(t, x, y)
	})
	t.Run("of one device", func(t *testing.T) {
		x, y := openOnOneDevice(t, Config{}, 1<<20)
		require.Equal(t, verbs.PathLoopback, x.pathKind())
		require.NoError(t, x.dev.SetFaults(bad))
		require.Equal(t, verbs.PathNetwork, x.pathKind())
		x.everyOperation(y, 5000)
		require.NoError(t, x.dev.SetFaults(faults.Faults{}))
		require.Equal(t, verbs.PathLoopback, x.pathKind())
		x.everyOperation(y, 5000)
	})
}

// Faults of one peer do not affect another.
func TestPeerFaults(t *testing.T) {
	const memory = 1 << 17
	y, z := openAdaptive(t, Config{Addresses: addresses("127.11.6.1")}, memory), openAdaptive(t, Config{Addresses: addresses("127.11.6.2")}, memory)
	x := openAdaptive(t, Config{Addresses: addresses("127.11.6.3")}, memory)
	other := x.addQueuePair(memory, verbs.QPInit{AdaptiveRetransmission: true})
	for _, pair := range [][2]*side{{x, y}, {other, z}} {
		pair[0].connect(pair[1])
		pair[1].connect(pair[0])
	}
	awaitSharedMemory(x, y, other, z)
	for range 2 {
		x.set(y, faults.Faults{Delay: time.Millisecond, Rate: 100e6})
		require.Equal(t, verbs.PathNetwork, x.pathKind())
		y.until("the channel has ended", func() bool { return y.pathKind() == verbs.PathNetwork })
		exchange(t, x, y, 60_000)
		require.Equal(t, []verbs.Path{verbs.PathSharedMemory, verbs.PathSharedMemory}, []verbs.Path{other.pathKind(), z.pathKind()})
		exchange(t, other, z, 60_000)
		x.set(y, faults.Faults{})
		awaitSharedMemory(x, y)
		exchange(t, x, y, 60_000)
	}

	// A peer that is left out of the faults of the device keeps its way.
	x.set(z, faults.Faults{Seed: 1})
	require.NoError(t, x.dev.SetFaults(faults.Faults{Loss: 1}))
	require.Equal(t, verbs.PathSharedMemory, other.pathKind())
	exchange(t, other, z, 60_000)
	y.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{y.sge(0, 8)}, RemoteAddr: x.mr.Addr(), RKey: x.mr.RKey()})
	require.Equal(t, []verbs.Status{verbs.StatusRetryExceeded}, statuses(y.wait(1)), "the way is cut")
	exchange(t, other, z, 60_000)
}
