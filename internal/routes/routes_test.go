package routes

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSource(t *testing.T) {
	localhost := netip.MustParseAddr("127.0.0.1")
	assert.Equal(t, localhost, Source(localhost))
}

func TestLocal(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.1.2.3": true, "192.0.2.77": false, "2001:db8::77": false, "fe80::1": false} {
		assert.Equal(t, want, Local(netip.MustParseAddr(addr)), addr)
	}
	own, err := hostaddr.List()
	require.NoError(t, err)
	for _, o := range own {
		if o.Addr.Is4() { // others may be tentative
			assert.True(t, Local(o.Addr), "%v", o)
		}
	}
}
