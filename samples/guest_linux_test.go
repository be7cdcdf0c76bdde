package samples

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/internal/soak"
)

// requireGuest skips tests that TestRig of internal/rig runs in its guest, where one
// host has the kernel's rxe, and the other is the network namespace s.
func requireGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of internal/rig")
	}
}

// on is the beginning of a command that runs where the guest has the device.
func on(device string) []string {
	if strings.HasPrefix(device, "soft") {
		return []string{"ip", "netns", "exec", "s"}
	}
	return nil
}

// The programs without a peer print on rxe what they print on the software device. Short:
// one with writes and an error, one with copies, one that waits for events.
func TestGuestLocal(t *testing.T) {
	requireGuest(t)
	for _, l := range locals() {
		if testing.Short() && !slices.Contains([]string{"pe_task_error", "graph", "pe_event"}, l.program) {
			continue
		}
		t.Run(l.program, func(t *testing.T) { l.run(t, "-d", "rxe0") })
	}
}

// Two programs count on rxe, on the software device and on one of each. Short: with rxe.
func TestGuestSoakCount(t *testing.T) {
	requireGuest(t)
	for _, first := range []string{"rxe0", "soft-v1"} {
		for _, second := range []string{"rxe0", "soft-v1"} {
			if testing.Short() && first != "rxe0" && second != "rxe0" {
				continue
			}
			t.Run(fmt.Sprintf("%s and %s", first, second), func(t *testing.T) {
				a, b := counter{on(first), first}, counter{on(second), second}
				count(t, a, b, soak.Rounds(t, 100, 20_000), 0)
				count(t, a, b, soak.Rounds(t, 800, 200_000), 0, "-writers", "8")
			})
		}
	}
}
