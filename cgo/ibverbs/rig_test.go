package ibverbs_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// TestRig runs the tests of this package whose names begin with TestGuest in a
// machine that has an adapter: the kernel's rxe.
func TestRig(t *testing.T) {
	rig.Require(t)
	requireHeaders(t)
	binary := rig.BuildTest(t, ".", "-tags", "verbs")
	rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/ibverbs.test": binary},
		Script:  "VERBENA_GUEST=1 ibverbs.test -test.v -test.run '^TestGuest' -test.timeout 150s",
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
}

// requireHeaders skips the test, or fails it in CI, where the driver cannot be
// built.
func requireHeaders(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ program, input, missing string }{
		{"cc", "", "a C compiler (Debian package gcc)"},
		{"cc", "#include <infiniband/verbs.h>\n", "the headers of libibverbs (Debian package libibverbs-dev)"},
	} {
		cmd := exec.CommandContext(t.Context(), c.program, "-fsyntax-only", "-xc", "-")
		cmd.Stdin = strings.NewReader(c.input)
		if err := cmd.Run(); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("missing: %s; CI skips nothing", c.missing)
			}
			t.Skipf("missing: %s", c.missing)
		}
	}
}
