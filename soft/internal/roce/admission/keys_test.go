package admission

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A host has its tries, then one a second, and does not take those of others. One that was
// refused more often waits longer, up to a bound.
func TestTriesOfAHost(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Hour
	k := &New(Config{Now: func() time.Duration { return now }, Log: zerolog.New(&log)}).Keys
	liar, friend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for k.hosts.of(liar) == k.hosts.of(friend) {
		k.hosts = newHostBuckets(Random)
	}
	for range KeyBurst {
		require.True(t, k.Admit(liar))
		k.Refused(liar)
	}
	require.False(t, k.Admit(liar))
	require.True(t, k.Admit(friend))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")))
	require.Contains(t, log.String(), "192.0.2.1")

	now += keyInterval
	require.True(t, k.Admit(liar))
	k.Refused(liar)
	require.False(t, k.Admit(liar))

	now += KeyBurst * keyInterval
	for range KeyBurst {
		require.True(t, k.Admit(liar))
		k.Refused(liar)
	}
	require.False(t, k.Admit(liar))
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("\n")), "not more often than every %v", logInterval)
}
