package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
)

// A million completions over eight contexts, through an event loop that arms,
// clears and progresses at random moments: none is lost, and the loop does not
// spin, neither at work nor while it waits.
func TestEventLoopWithEightContexts(t *testing.T) {
	total := 1_000_000
	if testing.Short() {
		total /= 20
	}
	const seed = 1
	engine := pe.New(pe.Config{})
	w := newFleet(t, engine, seed)
	l := newLoop(t, engine, seed)
	l.state = w.String
	w.start()
	l.until(w.running)
	w.makeTasks()

	l.beat(3 * time.Millisecond)
	began, before := time.Now(), cpu(t)
	phases := 0
	for ; w.completed < total; phases++ {
		w.phase()
		l.until(w.quiet)
	}
	elapsed, used := time.Since(began), cpu(t)-before
	l.beat(0)
	t.Logf("%d completions in %d phases: %d returns of epoll, %d of them with nothing to do, %d of those without a reason; %d for other descriptors",
		w.completed, phases, l.returns, l.idle, l.needless, l.others)
	t.Logf("%v of processor time in %v: %v for a completion, %v for a return of epoll",
		used.Round(time.Millisecond), elapsed.Round(time.Millisecond), used/time.Duration(w.completed), used/time.Duration(max(l.returns, 1)))
	assert.LessOrEqual(t, l.idle, w.completed/10, "the loop spins")

	const while = 250 * time.Millisecond
	w.faults(soft.Faults{Loss: 1})
	w.left = 2 * stations * stationTasks
	for _, s := range w.all {
		w.begin(s, 2, stationTasks)
	}
	returns, used := l.rest(while)
	t.Logf("all in flight and delayed for %v: %d returns of epoll, %v of processor time", while, returns, used)
	assert.LessOrEqual(t, returns, 2*stations, "tasks that are in flight make the descriptor readable")
	assert.Less(t, used, while/2)
	w.faults(soft.Faults{})
	l.until(w.quiet)

	returns, used = l.rest(while)
	t.Logf("nothing in flight for %v: %d returns of epoll, %v of processor time", while, returns, used)
	assert.LessOrEqual(t, returns, stations, "an idle engine makes the descriptor readable")
	assert.Less(t, used, while/2)

	w.stop()
	l.until(w.idle)
	w.close()
	require.NoError(t, engine.Close())
}
