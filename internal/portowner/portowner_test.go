//go:build linux

package portowner

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFindOurselves(t *testing.T) {
	for _, bind := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(bind)))
		require.NoError(t, err)
		at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		ask := at
		if at.Addr().IsUnspecified() {
			ask = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
		}
		o := Find(ask)
		require.NotNil(t, o, "%v", at)
		assert.Equal(t, os.Getpid(), o.PID)
		assert.False(t, o.Kernel)
		assert.NotEmpty(t, o.Command)
		assert.Contains(t, o.String(), "process ")
		require.NoError(t, conn.Close())
		assert.Nil(t, Find(ask))
	}
}

func TestParse(t *testing.T) {
	const table = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0
  101: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0000000000000000 0
  102: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
  103: x:12B7 1 2 3 4 5 6 7 8 9
  104: 0100007F 1 2 3 4 5 6 7 8 9
  105: 01007F:12B7 1 2 3 4 5 6 7 8 9
  106: 0100007F:12B7
  107: 0100007F:XXXX 1 2 3 4 5 6 7 8 9
`
	if net.ParseIP("127.0.0.1") == nil || !littleEndian() {
		t.Skip("the table is of a machine with little-endian words")
	}
	require.Equal(t, []socket{
		{netip.MustParseAddrPort("127.0.0.1:4791"), 1000, 4711},
		{netip.MustParseAddrPort("[::1]:4791"), 0, 0},
	}, parse(strings.NewReader(table), 4791))
}

func littleEndian() bool {
	a, _ := parseAddr("0100007F:0000")
	return a.Addr() == netip.MustParseAddr("127.0.0.1")
}

func TestOwnersInWords(t *testing.T) {
	at := netip.MustParseAddrPort("0.0.0.0:4791")
	assert.Equal(t, "the kernel (its RoCE driver rxe, most likely), on 0.0.0.0:4791", (&Owner{Addr: at, Kernel: true}).String())
	assert.Equal(t, "a process of user 1000, on 0.0.0.0:4791", (&Owner{Addr: at, User: 1000}).String())
}
