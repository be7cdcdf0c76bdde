package samples

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/soak"
)

// counter is where one of two counting programs runs.
type counter struct {
	prefix []string // words before its command
	device string
}

// runCount runs a pair of workload programs that count, and must agree on the number that they
// print.
func runCount(t *testing.T, operation string, requester, responder counter, printed string, args ...string) {
	t.Helper()
	p := pair.Pair{Name: operation, Requester: "workload", Responder: "workload", Operation: operation, Values: true, Messages: 1}
	if operation == "sync_event" {
		p = workload(t, operation)
	}
	args = append(args, "-timeout", soak.Patience(t, 5*time.Minute).String())
	r := runPair(t, p, pair.Options{
		Way:             pair.Dir,
		RequesterPrefix: requester.prefix, RequesterArgs: append([]string{"-d", requester.device}, args...),
		ResponderPrefix: responder.prefix, ResponderArgs: append([]string{"-d", responder.device}, args...),
	})
	assert.Contains(t, r.Requester.Stdout, printed)
}

// countInTurns runs two programs, each of which adds n times to the other's event, and waits on
// its own before each step.
func countInTurns(t *testing.T, a, b counter, n int) {
	t.Helper()
	runCount(t, "count", a, b, fmt.Sprintf("counted to: %d ", n), "-n", fmt.Sprint(n))
}

// countTogether adds n times over eight connections to the event of another program, which itself
// adds local times, on eight goroutines.
func countTogether(t *testing.T, a, b counter, n, local int) {
	t.Helper()
	const first = 0xd0ca // the value at the beginning
	runCount(t, "sync_event", a, b, fmt.Sprintf("added to: %d ", first+n+local), "-nc", "8", "-n", fmt.Sprint(n), "-local", fmt.Sprint(local))
}

// Two programs count alternately, each adding to the other's event and waiting on its
// own: a lost step would stop them, and a duplicated one is detected.
func TestSoakCountInTurns(t *testing.T) {
	near := counter{device: "soft-lo"}
	countInTurns(t, near, near, soak.Rounds(t, 2000, 50_000))
	for _, faults := range []string{"loss=0.02", "duplicate=0.2&reorder=0.2"} {
		bad := counter{device: "soft-lo?" + faults}
		countInTurns(t, bad, bad, soak.Rounds(t, 100, 1000))
	}
}

// Eight writers on one event: over eight connections, and from the event's own
// program at the same time, where processor and device agree on what is atomic.
func TestSoakCountTogether(t *testing.T) {
	near, bad := counter{device: "soft-lo"}, counter{device: "soft-lo?loss=0.02&duplicate=0.1&reorder=0.1"}
	n := soak.Rounds(t, 4000, 100_000)
	countTogether(t, near, near, n, 0)
	countTogether(t, near, near, n, 40*n)
	countTogether(t, bad, bad, n/25, n/100)
}
