package transfer

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/metrics"
)

// value finds a counter of an object.
func value(t *testing.T, o metrics.Object, name string) uint64 {
	for _, c := range o.Counters {
		if c.Name == name {
			require.NotEmpty(t, c.Help)
			return c.Value
		}
	}
	require.Fail(t, "no such counter", "%s of %s", name, o.Kind)
	return 0
}

// An agent is a source of metrics, with the contexts of its devices. Its gauges tell what it has to do, and are zero when it
// is closed.
func TestMetrics(t *testing.T) {
	near, far := open(t, 2), open(t, 2)
	mine := register(t, near, "", 5000)
	register(t, far, "blocks", 5000)
	remote := dial(t, near, far, "blocks")
	var b Batch
	for i := range 5 {
		b.Read(remote, i*1000, mine.Bytes()[i*1000:][:1000])
	}
	require.NoError(t, submit(t, near, &b).Wait(testContext(t)))
	var source metrics.Source = near
	objects := slices.Collect(source.Metrics(false))
	require.Len(t, objects, 3)
	require.Equal(t, "agent", objects[0].Kind)
	require.Equal(t, "soft-lo,soft-lo", objects[0].Device)
	require.EqualValues(t, 5, value(t, objects[0], "items"))
	require.EqualValues(t, 5000, value(t, objects[0], "item_bytes"))
	require.EqualValues(t, 1, value(t, objects[0], "peers"))
	for _, gauge := range []string{"items_pending", "pieces_in_flight", "pieces_to_repeat"} {
		require.Zero(t, value(t, objects[0], gauge), gauge)
	}
	ready := func(a *Agent) (n uint64) {
		for _, o := range metrics.Totals(a)[1:] {
			require.Equal(t, "context", o.Kind)
			n += value(t, o, "connections_ready")
		}
		return n
	}
	require.Eventually(t, func() bool { return ready(near) == 2 && ready(far) == 2 }, time.Minute, time.Millisecond)
	require.Len(t, slices.Collect(source.Metrics(true)), 5)
	for n := range 5 { // whoever asks may have enough of it
		for range source.Metrics(true) {
			if n--; n < 0 {
				break
			}
		}
	}

	far.mu.Lock() // so that it answers nobody
	done := make(chan error)
	go func() {
		_, err := near.Dial(testContext(t), far.Addrs()[0].String())
		done <- err
	}()
	require.Eventually(t, func() bool {
		c := near.Counters()
		return c.Peers == 2 && c.Pending == 1 && c.Dialling == 1
	}, time.Minute, time.Millisecond)
	far.mu.Unlock()
	require.NoError(t, <-done)
	require.NoError(t, far.Close())
	require.NoError(t, near.Close())
	require.Zero(t, ready(near)+ready(far))
	c := near.Counters()
	require.Zero(t, c.Peers+c.InFlight+c.ToRepeat+c.Dialling+c.DialsWaiting)
}
