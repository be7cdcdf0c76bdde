package hosts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two at a time: their addresses are the same, and do not meet.
func TestNamespacePair(t *testing.T) {
	var cables []*NamespacePair
	for _, mtu := range []int{1500, 9000} {
		c, err := NewNamespacePair(t.Context(), mtu)
		if errors.Is(err, ErrUnavailable) {
			netns.Need(t, err, "the test needs network namespaces, as root")
		}
		require.NoError(t, err)
		cables = append(cables, c)
		for i, h := range c.Hosts {
			out := output(t, &h, "cat", "/sys/class/net/e0/mtu", "/sys/class/net/e0/operstate")
			assert.Equal(t, map[int]string{1500: "1500\nup\n", 9000: "9000\nup\n"}[mtu], out)
			assert.Contains(t, output(t, &h, "ip", "addr"), []string{"10.11.0.1/24", "10.11.0.2/24"}[i])
			assert.NotEqual(t, namespaceOf(t, "self"), namespaceOf(t, filepath.Base(h.Proc)))
		}
	}
	for _, c := range cables {
		require.NoError(t, c.Remove())
		for _, h := range c.Hosts {
			assert.NoDirExists(t, h.Proc)
		}
	}
}

// One that cannot be finished leaves nothing.
func TestNamespacePairFails(t *testing.T) {
	c, err := NewNamespacePair(t.Context(), 1<<30)
	if errors.Is(err, ErrUnavailable) {
		netns.Need(t, err, "the test needs network namespaces, as root")
	}
	require.ErrorContains(t, err, "mtu 1073741824")
	assert.Nil(t, c)
}

func output(t *testing.T, h *Host, command ...string) string {
	t.Helper()
	args := append(h.Run[:len(h.Run):len(h.Run)], command...)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// namespaceOf is the network namespace of a process.
func namespaceOf(t *testing.T, pid string) string {
	t.Helper()
	name, err := os.Readlink("/proc/" + pid + "/ns/net")
	require.NoError(t, err)
	return name
}
