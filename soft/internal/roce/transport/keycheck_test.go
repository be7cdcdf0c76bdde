package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// testGuard admits keys while it is open.
type testGuard struct {
	open    bool
	refused int
}

func (g *testGuard) Admits() bool { return g.open }
func (g *testGuard) Refused()     { g.refused++ }

func guardedRig(t *testing.T, kind verbs.QPType) (*rig, *testGuard) {
	t.Helper()
	g := &testGuard{}
	r := newRig(t, options{kind: kind})
	r.server.qp.guard = g
	return r, g
}

// While the peer's host is delayed, a request with a key that the peer has not used yet is
// dropped without a check of the key. The peer sends it again.
func TestKeysAreHeldUp(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite} {
		for _, right := range []bool{true, false} {
			r, g := guardedRig(t, verbs.RC)
			wr := r.wr(1, op, 8)
			want := verbs.StatusSuccess
			if !right {
				wr.RKey, want = 0xbad, verbs.StatusRemoteAccessError
			}
			r.client.post(wr)
			r.exchange()
			require.Empty(t, r.client.send.take(), op)
			require.EqualValues(t, 1, r.server.counters.AccessesLimited)
			require.Zero(t, g.refused)
			require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
			r.requireIntact()

			g.open = true
			r.expire()
			r.exchange()
			r.requireSent(1, want)
			if !right {
				require.Equal(t, 1, g.refused)
			}
		}
	}
}

// The later packets of a delayed message do not count as a gap.
func TestLongWritesAreHeldUpInSilence(t *testing.T) {
	t.Parallel()
	r, g := guardedRig(t, verbs.RC)
	r.client.post(r.wr(1, verbs.OpWrite, 5000))
	r.server.take(r.now, r.client.transmit(r.now)...)
	require.Empty(t, r.server.transmit(r.now))
	g.open = true
	r.expire()
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, r.local.Mem[:5000], r.remote.Mem[:5000])
}

// A connection can use a key that it has used before, whatever other connections of its host
// do, and can send requests without a key. A wrong range with such a key is refused but does
// not count as a guess.
func TestGrantedKeysAreNotHeldUp(t *testing.T) {
	t.Parallel()
	r, g := guardedRig(t, verbs.RC)
	g.open = true
	second := newArena(t, r.server.memory, 0x3003, 0x3_0000, 4096, everyAccess)
	other := r.wr(1, verbs.OpWrite, 8)
	other.RemoteAddr, other.RKey = second.Base, second.Key
	r.client.post(other, r.wr(2, verbs.OpWrite, 8))
	r.exchange()
	r.client.send.take()
	g.open = false
	empty := r.wr(5, verbs.OpWrite, 0)
	empty.RKey = 0xbad
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 64)}})
	r.client.post(other, r.wr(3, verbs.OpRead, 8), r.wr(4, verbs.OpFetchAdd, 8), empty, r.wr(6, verbs.OpSend, 8))
	r.exchange()
	require.Equal(t, []uint64{1, 3, 4, 5, 6}, ids(r.client.send.take()))
	require.Zero(t, r.server.counters.AccessesLimited)

	wr := r.wr(7, verbs.OpRead, 8)
	wr.RemoteAddr += arenaLen
	r.requireFailed(wr, verbs.StatusRemoteAccessError)
	require.Zero(t, g.refused, "it was no guess")
}

// A request with a key that the peer was given is never delayed, also after a reset of the
// queue pair.
func TestExpectedKeyIsNotHeldUp(t *testing.T) {
	t.Parallel()
	r, g := guardedRig(t, verbs.RC)
	r.server.qp.ExpectKey(remoteKey)
	r.server.modify(verbs.QPReset)
	r.server.ready(r.o.attr(clientQPN, r.o.peerPSN, r.o.psn))
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	wr := r.wr(2, verbs.OpWrite, 8)
	wr.RemoteAddr += arenaLen
	r.requireFailed(wr, verbs.StatusRemoteAccessError)
	require.Zero(t, g.refused)
}

// A key is forgotten after others, and with the connection.
func TestGrantedKeysAreFew(t *testing.T) {
	t.Parallel()
	var g GrantedKeys
	for key := uint32(1); key <= 100; key++ {
		require.False(t, g.Has(key))
		g.Add(key)
		require.True(t, g.Has(key))
	}
	require.True(t, g.Has(93))
	require.False(t, g.Has(92))

	r, guard := guardedRig(t, verbs.RC)
	guard.open = true
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.exchange()
	require.True(t, r.server.qp.admits(remoteKey))
	r.server.modify(verbs.QPReset)
	guard.open = false
	require.False(t, r.server.qp.admits(remoteKey))
}

// An unreliable connection cannot bypass the limit, nor can an invalidation of another key.
func TestOtherWaysToTryKeys(t *testing.T) {
	t.Parallel()
	r, g := guardedRig(t, verbs.UC)
	write := r.forged(wire.UCWriteOnly, 0, 8, 8)
	r.server.take(r.now, write)
	require.EqualValues(t, 1, r.server.counters.AccessesLimited)
	r.requireIntact()
	g.open = true
	write = r.forged(wire.UCWriteOnly, 1, 8, 8)
	write.RETH.RKey = 0xbad
	r.server.take(r.now, write)
	require.Equal(t, 1, g.refused)
	require.EqualValues(t, 1, r.server.counters.RemoteAccessErrors)
	r.requireIntact()

	r, g = guardedRig(t, verbs.RC)
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 64)}})
	send := r.wr(1, verbs.OpSendInvalidate, 8)
	send.InvalidateRKey = 0xbad
	r.client.post(send)
	r.exchange()
	require.Empty(t, r.client.send.take())
	g.open = true
	r.expire()
	r.exchange()
	r.requireSent(1, verbs.StatusRemoteAccessError)
	require.Equal(t, 1, g.refused)
}
