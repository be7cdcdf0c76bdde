package admission

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// An address has its burst of refused packets, then its rate. What a restriction would not stop
// begins none.
func TestTokensOfRefusedPackets(t *testing.T) {
	var log bytes.Buffer
	fx := newFixture()
	fx.cfg.Log = zerolog.New(&log)
	f, now := fx.entry, fx.now
	peer, unknown := netip.MustParseAddrPort("192.0.2.12:4791"), netip.MustParseAddrPort("192.0.2.13:4791")
	from := f.Connection(peer.Addr(), peer.Port(), nil)
	from.Open()
	for range 2 * RefusedBurst {
		require.Zero(t, f.Refused(peer, 5, now), "it may be of the peer")
		require.Zero(t, f.Refused(unknown, wire.ManagementQPN, now), "it is open")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { f.Refused(peer, 5, now) }))
	until := f.Refused(unknown, 5, now)
	require.Equal(t, now+restrictTime, until)
	require.Zero(t, f.Refused(unknown, 5, now), "there is one already")
	require.Equal(t, until, f.Expire(until-1))
	require.True(t, f.restrictedUntil.Load() != 0)
	require.Equal(t, []netip.AddrPort{peer}, fx.filter.Admitted)
	require.Zero(t, f.Expire(until))
	require.False(t, f.restrictedUntil.Load() != 0)
	require.False(t, fx.filter.Restrict)
	for range RefusedBurst {
		require.Zero(t, f.Refused(unknown, 5, until))
	}
	require.NotZero(t, f.Refused(unknown, 5, until))
	fx.now = until
	f.Lift()
	for i := range 100 * RefusedBurst {
		require.Zero(t, f.Refused(unknown, 5, until+time.Duration(i+1)*refusedInterval), "no faster than they may be")
	}
	assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("flood of refused packets")), "not more often than every %v", logInterval)
	assert.Contains(t, log.String(), unknown.String())
	require.NotZero(t, f.Refused(unknown, 5, until+restrictTime), "out of tokens")
}
