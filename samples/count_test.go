package samples

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/test/soak"
)

// counter is where one of two counting programs runs.
type counter struct {
	prefix []string // words before its command
	device string
}

// count runs two of the counting programs, which must agree on the number: n, plus local if
// the second program adds to its own event.
func count(t *testing.T, first, second counter, n, local int, args ...string) {
	t.Helper()
	n += n % 2 // counting alternately needs an even number
	dir := t.TempDir()
	if local > 0 {
		args = append(args, "-local", strconv.Itoa(local))
	}
	program := func(c counter, more ...string) *process {
		command := append(slices.Clone(c.prefix), filepath.Join(bin, "counters"), "-dir", dir, "-d", c.device,
			"-n", strconv.Itoa(n), "-timeout", soak.Patience(t, 5*time.Minute).String())
		return start(t, slices.Concat(command, args, more)...)
	}
	a, b := program(first, "-first"), program(second)
	for _, p := range []*process{a, b} {
		assert.Zero(t, p.code(), "%s", p.stderr.String())
		assert.True(t, strings.HasPrefix(p.stdout.String(), fmt.Sprintf("counted to %d in ", n+local)), "%q", p.stdout.String())
	}
}

// Two programs count alternately, each adding to the other's event and waiting on its
// own: a lost step would stop them, and a duplicated one is detected.
func TestSoakCountInTurns(t *testing.T) {
	near := counter{device: "soft-lo"}
	count(t, near, near, soak.Rounds(t, 4000, 100_000), 0)
	for _, faults := range []string{"loss=0.02", "duplicate=0.2&reorder=0.2"} {
		bad := counter{device: "soft-lo?" + faults}
		count(t, bad, bad, soak.Rounds(t, 200, 2000), 0)
	}
}

// Eight writers on one event: over eight connections, and from the event's own
// program at the same time, where processor and device agree on what is atomic.
func TestSoakCountTogether(t *testing.T) {
	near, bad := counter{device: "soft-lo"}, counter{device: "soft-lo?loss=0.02&duplicate=0.1&reorder=0.1"}
	n := soak.Rounds(t, 4000, 100_000)
	count(t, near, near, n, 0, "-writers", "8")
	count(t, near, near, n, 40*n, "-writers", "8")
	count(t, bad, bad, n/25, n/100, "-writers", "8")
}
