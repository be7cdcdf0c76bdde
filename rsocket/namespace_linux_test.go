package rsocket_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// The addresses of an interface, link-local ones included, in a network namespace.
func TestAddressesOfAnInterface(t *testing.T) {
	n := netns.New(t)
	n.IP(t, "link add eth9 type veth peer name eth8")
	for _, i := range []string{"eth8", "eth9"} {
		n.IP(t, "link set %s addrgenmode none", i) // a generated address would be tentative for a while
		n.IP(t, "link set %s up", i)
	}
	n.IP(t, "addr add 198.51.100.7/24 dev eth9")
	n.IP(t, "addr add fe80::7/64 dev eth9 nodad")
	n.IP(t, "addr add 2001:db8::7/64 dev eth9 nodad")
	n.IP(t, "route add default dev eth9")
	args := append(n.Run(), os.Args[0], "-test.run=^TestAddresses$", "-test.v")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), ownNamespace+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "TestAddresses/fe80::7%eth9")
	t.Logf("%s", out)
}
