package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

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

// need skips a test where there are no namespaces.
func need(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrUnavailable) {
		Need(t, err, "the test needs to create network namespaces, as root")
	}
	require.NoError(t, err)
}

// New makes a namespace, which is removed at the end of the test.
func New(t testing.TB) Namespace {
	t.Helper()
	n, err := Make(context.Background())
	need(t, err)
	t.Cleanup(n.Close)
	return n
}

// Hosts makes hosts of a Network, which are removed at the end of the test.
func Hosts(t testing.TB, count, mtu int) []Host {
	t.Helper()
	n, err := MakeNetwork(context.Background(), count, mtu)
	need(t, err)
	t.Cleanup(n.Close)
	return n.Hosts
}

// IP runs ip(8) in the namespace.
func (n Namespace) IP(t testing.TB, format string, args ...any) {
	t.Helper()
	_, err := n.Command(t.Context(), append([]string{"ip"}, strings.Fields(fmt.Sprintf(format, args...))...)...)
	require.NoError(t, err)
}
