//go:build linux

package test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// guestVariable is set in the guest of TestRig of test/rig, which has the library in
// guestLibrary.
const (
	guestVariable = "VERBENA_GUEST"
	guestLibrary  = "/lib/verbena"
)

// TestGuestPrograms runs the programs with the kernel's rxe at one end, and the library at the
// other. It prints the table. Short: a selection of programs.
func TestGuestPrograms(t *testing.T) {
	if os.Getenv(guestVariable) == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	// A server of ucx_perftest takes the name of the device from its client, so both have the same.
	rename(t, "rxe0", "soft_v1")
	t.Cleanup(func() { rename(t, "soft_v1", "rxe0") })
	rxe := end{device: "soft_v1", gid: 1} // index 0 is the link-local IPv6 address
	library := end{prefix: []string{"ip", "netns", "exec", "s"}, device: "soft_v1", devices: "soft-v1"}
	const rxeHost, libraryHost = "10.0.0.1", "10.0.0.2"
	control := &place{name: "rxe with rxe", server: rxe, client: rxe, host: rxeHost, fewer: 20}
	runPrograms(t, []*place{
		{name: "rxe serves", server: rxe, client: library, host: rxeHost, fewer: 20, control: control},
		{name: "the library serves", server: library, client: rxe, host: libraryHost, fewer: 20, control: control},
	})
}

// rename renames a device of the kernel.
func rename(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.Command("rdma", "dev", "set", from, "name", to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
