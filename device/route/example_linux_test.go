package route

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// The example of Serve, in a network namespace whose interfaces are its own.
func TestExampleServe(t *testing.T) {
	n := netns.New(t)
	n.IP(t, "link add n0 type veth peer name n1")
	for _, name := range []string{"n0", "n1"} {
		n.IP(t, "link set %s addrgenmode none", name)
		n.IP(t, "link set %s up", name)
	}
	n.IP(t, "addr add 10.12.0.1/24 dev n0")
	args := append(n.Run(), os.Args[0], "-test.run=^ExampleServe$", "-test.v", "-test.timeout=8m")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), aloneIn+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: ExampleServe")
}
