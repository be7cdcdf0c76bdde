package soft

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/test/netns"
)

// A device that gets another port than RoCEv2's logs that when it is opened, and who has that port.
func TestOtherPortIsLogged(t *testing.T) {
	namespace := netns.New(t)
	namespace.IP(t, "address add 192.0.2.7/32 dev lo")
	namespace.IP(t, "link set lo up")
	require.NoError(t, namespace.Do(func() error {
		const user = 12345
		own, _ := unix.SetfsuidRetUid(user)
		taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.7:4791")))
		_, _ = unix.SetfsuidRetUid(own)
		if !assert.NoError(t, err) {
			return nil
		}
		var log bytes.Buffer
		open := func() *Device {
			log.Reset()
			d, err := Open(Config{Address: netip.MustParseAddrPort("192.0.2.7:0"), Log: zerolog.New(&log)})
			assert.NoError(t, err)
			return d
		}
		d := open()
		gids, err := d.GIDs(1)
		assert.NoError(t, err)
		assert.NotEqualValues(t, 4791, gids[0].UDPPort)
		assert.Contains(t, log.String(), fmt.Sprintf(`"address":"192.0.2.7","udp_port":%d`, gids[0].UDPPort))
		assert.Contains(t, log.String(), fmt.Sprintf("of user %d, on 192.0.2.7:4791 has it", user))
		assert.NoError(t, d.Close())
		assert.NoError(t, taken.Close())

		d = open()
		assert.Empty(t, log.String())
		assert.NoError(t, d.Close())
		lo, err := Open(Config{Log: zerolog.New(&log)})
		assert.NoError(t, err)
		assert.Empty(t, log.String(), "no adapter is on the loopback interface")
		return lo.Close()
	}))
}
