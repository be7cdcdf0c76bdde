package ibverbs_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/rig"
)

// TestRig runs the tests of this package, rdma, dma and syncevent whose names
// begin with TestGuest in a machine that has an adapter: the kernel's rxe. It is
// one machine for all, since each takes a while to start.
func TestRig(t *testing.T) {
	rig.Require(t)
	requireHeaders(t)
	rig.Run(t, rig.Job{
		Files: map[string]string{
			"/bin/ibverbs.test":   rig.BuildTest(t, ".", "-tags", "verbs"),
			"/bin/rdma.test":      rig.BuildTest(t, "../../rdma", "-tags", "verbs"),
			"/bin/dma.test":       rig.BuildTest(t, "../../dma", "-tags", "verbs"),
			"/bin/syncevent.test": rig.BuildTest(t, "../../syncevent", "-tags", "verbs"),
		},
		Script:  script,
		MTU:     4500,
		Timeout: 8 * time.Minute,
	})
}

// TestRigSanitized runs this package's under AddressSanitizer, but for those that
// measure memory, of which the sanitizer has its own, and the operations over IPv6,
// which differ in an address and take long.
func TestRigSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute, and longer to build")
	}
	rig.Require(t)
	requireHeaders(t)
	rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/ibverbs.test": rig.BuildTest(t, ".", "-asan", "-tags", "verbs")},
		Script:  "VERBENA_GUEST=1 ibverbs.test -test.v -test.timeout 150s -test.run ^TestGuest -test.skip 'Cycles|NoAllocation|Operations/IPv6'",
		MTU:     4500,
		Timeout: 3 * time.Minute,
	})
}

// The tests that begin with TestBroken want a machine that lacks something, those
// with TestDeleted and TestUnplugged leave one without a device.
const script = `
export VERBENA_GUEST=1
verbs() { ibverbs.test -test.v -test.timeout 200s -test.run "^$1"; }
tasks() { rdma.test -test.v -test.timeout 200s -test.run "^$1"; }
verbs TestGuest
tasks TestGuest
dma.test -test.v -test.timeout 150s -test.run ^TestGuest
syncevent.test -test.v -test.timeout 100s -test.run ^TestGuest
chmod 600 /dev/infiniband/uverbs0
verbs TestBrokenNoPermission
verbs TestDeleted
rdma link add rxe0 type rxe netdev v0
tasks TestDeleted
verbs TestUnplugged
/bin/ip -batch - <<END
link add v0 mtu 4500 type veth peer name v1 mtu 4500 netns s
addr add 10.0.0.1/24 dev v0
link set v0 up
END
/bin/ip -n s -batch - <<END
addr add 10.0.0.2/24 dev v1
link set v1 up
END
rdma link add rxe0 type rxe netdev v0
until grep -q ffff:0a00:0001 /sys/class/infiniband/rxe0/ports/1/gids/1; do sleep 0.05; done
tasks TestUnplugged
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
