// Package netns makes network namespaces, for tests that need several hosts. It needs Linux,
// ip(8), and root.
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Need skips a test if err is not nil: the machine lacks something. In CI it fails the test
// instead, because a skipped test would hide a broken one.
func Need(t testing.TB, err error, what string) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("skipped: %s: %v", what, err)
}

// Namespace is the name of a network namespace.
type Namespace string

// New makes a namespace. The end of the test deletes it with its interfaces. The name includes
// the process, since other tests may use the same name.
func New(t testing.TB, name string) Namespace {
	t.Helper()
	if runtime.GOOS != "linux" {
		Need(t, errors.New("this is "+runtime.GOOS), "the test needs Linux")
	}
	_, err := exec.LookPath("ip")
	Need(t, err, "the test needs ip (Debian package iproute2)")
	n := fmt.Sprintf("verbena-%d-%s", os.Getpid(), name)
	out, err := exec.Command("ip", "netns", "add", n).CombinedOutput()
	if strings.Contains(string(out), "ermi") { // "not permitted" or "permission denied"
		Need(t, errors.New(strings.TrimSpace(string(out))), "the test needs to create network namespaces, as root")
	}
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		out, err := exec.Command("ip", "netns", "del", n).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	})
	return Namespace(n)
}

// IP runs ip(8) in the namespace.
func (n Namespace) IP(t testing.TB, format string, args ...any) {
	t.Helper()
	list := append([]string{"-n", string(n)}, strings.Fields(fmt.Sprintf(format, args...))...)
	out, err := exec.Command("ip", list...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", strings.Join(list, " "), out)
}

// Run returns the beginning of a command line that runs in the namespace.
func (n Namespace) Run() []string { return []string{"ip", "netns", "exec", string(n)} }
