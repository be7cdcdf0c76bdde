package hostaddr

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMisfit(t *testing.T) {
	for addr, unusable := range map[string]bool{
		"192.0.2.7": false, "127.0.0.1": false, "::1": false, "2001:db8::7": false, "fe80::1": false, "::ffff:192.0.2.7": false,
		"0.0.0.0": true, "::": true, "::ffff:0.0.0.0": true, "224.0.0.1": true, "239.255.1.1": true, "ff02::1": true,
		"255.255.255.255": true, "::ffff:255.255.255.255": true,
	} {
		assert.Equal(t, unusable, Unusable(netip.MustParseAddr(addr)) != "", addr)
	}
	assert.NotEmpty(t, Unusable(netip.Addr{}))
}

func TestBroadcast(t *testing.T) {
	for network, want := range map[string]string{
		"192.0.2.7/24": "192.0.2.255", "10.1.2.3/9": "10.127.255.255", "127.0.0.1/8": "127.255.255.255",
		"192.0.2.9/30": "192.0.2.11", "0.0.0.0/0": "255.255.255.255", "::ffff:192.0.2.7/120": "192.0.2.255",
		"192.0.2.8/31": "", "192.0.2.8/32": "", "2001:db8::/64": "",
	} {
		got := Broadcast(netip.MustParsePrefix(network))
		assert.Equal(t, want != "", got.IsValid(), network)
		if want != "" {
			assert.Equal(t, want, got.String(), network)
		}
	}
}
