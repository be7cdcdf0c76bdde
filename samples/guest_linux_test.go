package samples

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/test/soak"
)

// requireGuest skips tests that TestRig of test/rig runs in its guest, where one
// host has the kernel's rxe, and the other is the network namespace s.
func requireGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
}

// commandPrefix is the beginning of a command that runs where the guest has the device.
func commandPrefix(device string) []string {
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
				a, b := counter{commandPrefix(first), first}, counter{commandPrefix(second), second}
				countInTurns(t, a, b, soak.Rounds(t, 50, 10_000))
				countTogether(t, a, b, soak.Rounds(t, 800, 200_000), 0)
			})
		}
	}
}

// The kernel's connection manager, by rping, at either end of cm_rping. Short: each
// family with one of the sizes.
func TestGuestRping(t *testing.T) {
	requireGuest(t)
	const rounds = 5
	for i, family := range []struct{ name, rxe, soft string }{
		{"IPv4", "10.0.0.1", "10.0.0.2"}, {"IPv6", "fd00::1", "fd00::2"},
	} {
		for j, size := range []int{26, 65_535} {
			if i != j && testing.Short() {
				continue
			}
			args := []string{"-p", "7174", "-S", fmt.Sprint(size), "-C", fmt.Sprint(rounds), "-v", "-V"}
			ours := append(commandPrefix("soft-v1"), append([]string{bin + "/cm_rping", "-d", "soft-v1", "-timeout", patience}, args...)...)
			for _, end := range []struct {
				name         string
				ours, theirs []string
			}{
				{"rping serves", []string{"-c", "-a", family.rxe}, []string{"-s", "-a", family.rxe}},
				{"rping asks", []string{"-s", "-a", family.soft}, []string{"-c", "-a", family.soft}},
				{"rping asks a persistent server", []string{"-s", "-P", "-a", family.soft}, []string{"-c", "-a", family.soft}},
				{"rping -q serves", []string{"-c", "-a", family.rxe}, []string{"-s", "-q", "-a", family.rxe}},
				{"rping -q asks", []string{"-s", "-a", family.soft}, []string{"-c", "-q", "-a", family.soft}},
			} {
				t.Run(fmt.Sprintf("%s, %d bytes, %s", family.name, size, end.name), func(t *testing.T) {
					command := append(slices.Clone(ours), end.ours...)
					if end.ours[0] == "-c" { // which ends where nobody listens yet
						theirs := start(t, append(append([]string{"rping"}, end.theirs...), args...)...)
						o := start(t, command...)
						code := o.code()
						for deadline := time.Now().Add(5 * time.Minute); code == 1 && strings.Contains(o.lastLine(), "nobody listens") && time.Now().Before(deadline); code = o.code() {
							o = start(t, command...)
						}
						assert.Zero(t, code, "%s", o.stderr.String())
						assert.Equal(t, rounds, strings.Count(o.stdout.String(), " ping data: rdma-ping-"))
						_ = theirs.code() // a server of rping calls it an error that its peer disconnects
						return
					}
					o := start(t, command...)
					persistent := slices.Contains(end.ours, "-P")
					for range 2 {
						o.await("the context is Running")
						theirs := start(t, append(append([]string{"rping"}, end.theirs...), args...)...)
						code := theirs.code()
						// rping may close its event channel while another of its threads reads it.
						ended := code == 255 && strings.Contains(theirs.stdout.String()+theirs.stderr.String(), "rdma_get_cm_event: Bad file descriptor")
						if !ended {
							assert.Zero(t, code, "%s%s\n%s%s", theirs.stdout.String(), theirs.stderr.String(), o.stdout.String(), o.stderr.String())
						}
						if !persistent {
							assert.Zero(t, o.code(), "%s", o.stderr.String())
							assert.Equal(t, rounds, strings.Count(o.stdout.String(), " ping data: rdma-ping-"))
							return
						}
					}
					o.signal(syscall.SIGTERM)
					assert.Equal(t, 143, o.code())
					assert.Equal(t, 2*rounds, strings.Count(o.stdout.String(), "server ping data: rdma-ping-"))
				})
			}
		}
	}
}
