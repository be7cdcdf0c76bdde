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
	rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/ibverbs.test": rig.BuildTest(t, ".", "-tags", "verbs")},
		Script:  script,
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
}

// TestRigSanitized runs them under AddressSanitizer. It leaves out those that
// measure memory, of which the sanitizer has its own.
func TestRigSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute, and longer to build")
	}
	rig.Require(t)
	requireHeaders(t)
	rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/ibverbs.test": rig.BuildTest(t, ".", "-asan", "-tags", "verbs")},
		Script:  "VERBENA_GUEST=1 ibverbs.test -test.v -test.timeout 150s -test.run ^TestGuest -test.skip 'Cycles|NoAllocation'",
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
}

// The tests that begin with TestBroken want a machine that lacks something.
const script = `
export VERBENA_GUEST=1
verbs() { ibverbs.test -test.v -test.timeout 150s -test.run "^$1"; }
verbs TestGuest
chmod 600 /dev/infiniband/uverbs0
verbs TestBrokenNoPermission
verbs TestDeleted
rdma link add rxe0 type rxe netdev v0
verbs TestUnplugged
verbs TestBrokenNoDevice
for library in $(find / -xdev -name 'libibverbs.so.1*'); do mv $library /root; done
verbs TestBrokenNoLibrary
`

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
