package samples

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// fully is a number of steps, or a tenth of it with the race detector, which makes
// the programs that much slower.
func fully(n int) string {
	if raceDetector {
		n /= 10
	}
	return fmt.Sprint(n)
}

// counter is where one of two counting programs runs.
type counter struct {
	prefix []string // words before its command
	device string
}

// count runs two of the counting programs, which must agree on the number.
func count(t *testing.T, first, second counter, want string, args ...string) {
	t.Helper()
	dir := t.TempDir()
	program := func(c counter, more ...string) *process {
		command := append(slices.Clone(c.prefix), filepath.Join(bin, "count"), "-dir", dir, "-timeout", patience, "-d", c.device)
		return start(t, slices.Concat(command, args, more)...)
	}
	a, b := program(first, "-first"), program(second)
	for _, p := range []*process{a, b} {
		assert.Zero(t, p.code(), "%s", p.stderr.String())
		assert.True(t, strings.HasPrefix(p.stdout.String(), "counted to "+want+" in "), "%q", p.stdout.String())
	}
}

// Two programs count alternately, each adding to the other's event and waiting on its
// own: a step that is lost would stop them, one that comes twice shows.
func TestCountInTurns(t *testing.T) {
	near := counter{device: "soft-lo"}
	count(t, near, near, fully(100_000), "-n", fully(100_000))
	for _, faults := range []string{"loss=0.02", "duplicate=0.2&reorder=0.2"} {
		bad := counter{device: "soft-lo?" + faults}
		count(t, bad, bad, fully(2000), "-n", fully(2000))
	}
}

// Eight writers on one event: over eight connections, and from the event's own
// program at the same time, where processor and device agree on what is atomic.
func TestCountTogether(t *testing.T) {
	near, bad := counter{device: "soft-lo"}, counter{device: "soft-lo?loss=0.02&duplicate=0.1&reorder=0.1"}
	count(t, near, near, fully(100_000), "-n", fully(100_000), "-writers", "8")
	count(t, near, near, fully(4_100_000), "-n", fully(100_000), "-writers", "8", "-local", fully(4_000_000))
	count(t, bad, bad, fully(5000), "-n", fully(4000), "-local", fully(1000), "-writers", "8")
}
