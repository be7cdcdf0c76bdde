package netns

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Several networks at a time: their addresses are the same, and do not meet.
func TestHosts(t *testing.T) {
	for _, c := range []struct{ hosts, mtu int }{{2, 9000}, {3, 1500}} {
		hosts := Hosts(t, c.hosts, c.mtu)
		for i, h := range hosts {
			out, err := process.Run(t.Context(), process.Program{Args: append(h.Run(), "cat", "/sys/class/net/e0/mtu", "/sys/class/net/e0/operstate")})
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprintf("%d\nup\n", c.mtu), out)
			for _, addr := range []string{h.V4.String(), h.V6.String()} {
				var server net.Listener
				require.NoError(t, h.Do(func() (err error) {
					server, err = net.Listen("tcp", net.JoinHostPort(addr, "7000"))
					return err
				}))
				require.NoError(t, hosts[(i+1)%c.hosts].Do(func() error {
					client, err := net.Dial("tcp", server.Addr().String())
					if err != nil {
						return err
					}
					return client.Close()
				}))
				require.NoError(t, server.Close())
			}
		}
	}
}

// One that cannot be finished leaves nothing.
func TestFailure(t *testing.T) {
	need(t, func() error {
		n, err := Make(context.Background())
		if err == nil {
			n.Close()
		}
		return err
	}())
	_, err := MakeNetwork(t.Context(), 2, 1<<30)
	require.ErrorContains(t, err, "mtu 1073741824")
}
