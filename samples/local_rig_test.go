package samples

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// TestRigLocal runs the programs without a peer on the kernel's rxe, where they
// print what they print on the software device.
func TestRigLocal(t *testing.T) {
	rig.Require(t)
	dir := t.TempDir()
	args := []string{"build", "-tags", "verbs", "-o", dir + string(filepath.Separator)}
	var script strings.Builder
	for _, l := range locals() {
		args = append(args, "./"+l.program)
		_, _ = fmt.Fprintf(&script, "echo; echo '== %s'; /samples/%[1]s -d rxe0 -timeout 20s -l error 2>&1 || echo \"exit code $?\"\n", l.program)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed := rig.Run(t, rig.Job{
		Files:   map[string]string{"/samples": dir},
		Script:  script.String(),
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
	for _, l := range locals() {
		_, after, found := strings.Cut(printed, "== "+l.program+"\n")
		require.True(t, found, "%s", printed)
		own, _, _ := strings.Cut(after, "\n\n")
		if l.anyOrder {
			slices.Sort(l.want)
		}
		assert.Equal(t, l.want, l.lines(own), "%s", l.program)
	}
}
