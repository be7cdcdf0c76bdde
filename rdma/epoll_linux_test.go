package rdma_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/soak"
)

// A million completions over eight contexts, through an event loop that arms,
// clears and progresses at random moments: none is lost, and the loop does not
// spin, neither at work nor while it waits.
func TestSoakEventLoop(t *testing.T) {
	total := soak.Rounds(t, 20_000, 1_000_000)
	const seed = 1
	engine := pe.New(pe.Config{})
	w := newManyContexts(t, engine, seed)
	l := newLoop(t, engine, seed)
	l.state = w.String
	w.start()
	l.until(w.running)
	w.makeTasks()

	l.setTicker(3 * time.Millisecond)
	phases := 0
	for ; w.completed < total; phases++ {
		w.phase()
		l.until(w.tasksDone)
	}
	l.setTicker(0)
	t.Logf("%d completions in %d phases: %d returns of epoll, %d of them with nothing to do, %d of those without a reason; %d for other descriptors",
		w.completed, phases, l.returns, l.idle, l.needless, l.others)
	assert.LessOrEqual(t, l.needless, l.events, "the loop spins: an event makes the descriptor readable once")

	const while = 250 * time.Millisecond
	w.faults(soft.Faults{Loss: 1})
	w.left = 2 * contextCount * contextTasks
	for _, s := range w.all {
		w.begin(s, 2, contextTasks)
	}
	returns := l.countWakeups(while)
	t.Logf("all in flight and delayed for %v: %d returns of epoll", while, returns)
	assert.LessOrEqual(t, returns, 2*contextCount, "tasks that are in flight make the descriptor readable")
	w.faults(soft.Faults{})
	l.until(w.tasksDone)

	returns = l.countWakeups(while)
	t.Logf("nothing in flight for %v: %d returns of epoll", while, returns)
	assert.LessOrEqual(t, returns, contextCount, "an idle engine makes the descriptor readable")

	w.stop()
	l.until(w.idle)
	w.close()
	require.NoError(t, engine.Close())
}
