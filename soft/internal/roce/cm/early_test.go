package cm

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// Requests that come right after a listener was closed wait for the next listener, and are rejected
// if there is none in time.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"again": true, "not again": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, 1, faults{})
			a, b := w.attach("A", "10.0.0.1:4791", Config{}), w.attach("B", "10.0.0.2:4791", Config{})
			a.answerAll()
			b.answerAll()
			b.listen(ListenParams{Service: testService}).Close(w.Now)
			b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD}).Close(w.Now)
			w.Pass(10 * time.Millisecond)
			a.connect(a.params(b))
			a.resolve(b)
			w.Pass(100 * time.Millisecond)
			require.Empty(t, a.all)
			require.Equal(t, 2, b.Entries().Timers)
			if again {
				b.listen(ListenParams{Service: testService})
				b.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
				w.Pass(10 * time.Millisecond)
				require.Equal(t, "C", a.reports())
				require.Equal(t, mad.SIDRValid, a.all[len(a.all)-1].Status)
				require.Equal(t, "request, E", b.reports())
				return
			}
			w.Pass(earlyWait)
			require.Equal(t, "R 8", a.reports())
			require.Empty(t, b.all)
			require.Equal(t, uint64(2), b.Counters().NoService)
			w.Pass(endedLately)
			a.connect(a.params(b))
			w.Pass(time.Millisecond)
			require.Equal(t, "R 8, R 8", a.reports(), "later ones are rejected at once")
			b.requireEmpty()
		})
	}
}

// A flood of requests keeps a bounded number of them, and leaves room for those of others. The end of
// the manager drops them.
func TestListenAgainFlood(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 1, faults{})
	a, b, c := w.attach("A", "10.0.0.1:4791", Config{}), w.attach("B", "10.0.0.2:4791", Config{}), w.attach("C", "10.0.0.3:4791", Config{})
	for range maxEnded + 1 {
		b.listen(ListenParams{Service: testService}).Close(w.Now)
	}
	require.Len(t, b.ended, maxEnded)
	for range maxEarly/2 + 3 {
		a.connect(a.params(b))
	}
	w.Pass(time.Millisecond)
	require.Equal(t, maxEarly/2, b.Entries().Timers)
	require.Equal(t, "R 8, R 8, R 8", a.reports())
	c.connect(c.params(b))
	w.Pass(time.Millisecond)
	require.Equal(t, maxEarly/2+1, b.Entries().Timers)
	require.Empty(t, c.all)
	b.Close(w.Now)
	b.settle()
	require.Zero(t, b.Entries().Timers)
	w.Pass(time.Second)
	require.Equal(t, 3, strings.Count(a.reports(), "R 8"))
}
