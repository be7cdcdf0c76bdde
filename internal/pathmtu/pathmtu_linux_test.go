package pathmtu

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	own, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	bytes, ok := Of(own, other)
	require.True(t, ok)
	assert.Equal(t, min(lo.MTU, 65535), bytes)
	for _, pair := range [][2]string{{"127.0.0.1", "::1"}, {"192.0.2.77", "127.0.0.1"}, {"::1", "fe80::1"}} {
		_, ok := Of(netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1]))
		assert.False(t, ok, pair)
	}
}
