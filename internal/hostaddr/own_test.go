package hostaddr

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOwn(t *testing.T) {
	list, err := List()
	require.NoError(t, err)
	localhost := netip.MustParseAddr("127.0.0.1")
	i := slices.IndexFunc(list, func(o Own) bool { return o.Addr == localhost })
	require.GreaterOrEqual(t, i, 0, "%v", list)
	lo := list[i]
	assert.True(t, lo.Loopback)
	for addr, want := range map[string]string{
		"127.0.0.1": lo.Interface, "127.1.2.3": lo.Interface, "::ffff:127.0.0.1": lo.Interface,
		"192.0.2.77": "", "fe80::1%none": "",
	} {
		assert.Equal(t, want, InterfaceOf(netip.MustParseAddr(addr)), addr)
	}
}
