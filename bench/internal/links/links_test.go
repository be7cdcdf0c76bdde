package links

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Little, and fast: what is written arrives, also when a cable is cut.
func TestLinks(t *testing.T) {
	netns.New(t) // which skips the test where there are none
	bin := filepath.Join(t.TempDir(), "bench")
	_, err := process.Run(t.Context(), process.Program{Args: []string{"go", "build", "-pgo=off", "-o", bin, "../.."}})
	require.NoError(t, err)
	out, err := process.Run(t.Context(), process.Program{Args: []string{bin, "links", "-rounds", "1", "-size", "16", "-item", "64", "-rate", "100"}, Stderr: os.Stderr})
	require.NoError(t, err)
	for _, want := range []string{"median", "longest pause", right} {
		require.Contains(t, out, want)
	}
}
