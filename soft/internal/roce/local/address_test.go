package local

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func at(text string) Address { return Address{Device: netip.MustParseAddrPort(text)} }

func TestAddress(t *testing.T) {
	for _, a := range []Address{at("127.0.0.1:4791"), at("[fe80::1]:1"), {Device: at("[2001:db8::1]:65535").Device, Shard: 15}, {Device: at("10.0.0.1:9").Device, Shard: MaxShard}} {
		got, err := parseAddress(a.String())
		require.NoError(t, err)
		assert.Equal(t, a, got)
		assert.Zero(t, a.Compare(got))
	}
	assert.Equal(t, "127.0.0.1:4791", at("127.0.0.1:4791").String())
	assert.Equal(t, "127.0.0.1:4791/2", Address{at("127.0.0.1:4791").Device, 2}.String())
	assert.Equal(t, "127.0.0.1:4791", at("[::ffff:127.0.0.1]:4791").String())
	assert.Negative(t, at("127.0.0.1:4791").Compare(Address{at("127.0.0.1:4791").Device, 1}))
	assert.Negative(t, Address{at("127.0.0.1:4791").Device, 1}.Compare(at("127.0.0.2:4791")))
	for _, text := range []string{"", "/", "127.0.0.1", "127.0.0.1:4791/", "127.0.0.1:4791/0", "127.0.0.1:4791/-1", "127.0.0.1:4791/256", "127.0.0.1:4791/1/1", "127.0.0.1:4791/01", "[::ffff:127.0.0.1]:4791", "[fe80::1%lo]:1"} {
		_, err := parseAddress(text)
		assert.Error(t, err, text)
	}
}
