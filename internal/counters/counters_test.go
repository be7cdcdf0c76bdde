package counters

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type inner struct {
	Wait time.Duration `gauge:"wait" help:"the longest"`
}

type outer struct {
	Path  verbs.Path
	Bytes uint64 `counter:"bytes" unit:"bytes" help:"so many"`
	inner
}

func TestOf(t *testing.T) {
	require.Equal(t, []verbs.Counter{
		{Name: "bytes", Value: 5, Unit: "bytes", Help: "so many"},
		{Name: "wait", Value: 7, Unit: "nanoseconds", Help: "the longest", Gauge: true},
	}, Of(outer{Bytes: 5, inner: inner{Wait: 7}}))
}

func TestAdd(t *testing.T) {
	sum := struct{ A, B uint64 }{1, 2}
	Add(&sum, &struct{ A, B uint64 }{10, 20})
	require.Equal(t, struct{ A, B uint64 }{11, 22}, sum)
	q := verbs.QPCounters{SentBytes: 1, RoundTrip: 5, Path: verbs.PathNetwork}
	Add(&q, &verbs.QPCounters{SentBytes: 2, RoundTrip: 3, Silence: 4, Path: verbs.PathLoopback})
	require.Equal(t, verbs.QPCounters{SentBytes: 3, RoundTrip: 5, Silence: 4, Path: verbs.PathNetwork}, q)
}

func TestClearGauges(t *testing.T) {
	c := outer{Path: verbs.PathNetwork, Bytes: 5, inner: inner{Wait: 7}}
	ClearGauges(&c)
	require.Equal(t, outer{Path: verbs.PathNetwork, Bytes: 5}, c)
}

// Every field of counters is described, or is the path.
func TestDescribed(t *testing.T) {
	list := Of(verbs.QPCounters{})
	names := map[string]bool{}
	for _, c := range list {
		require.NotEmpty(t, c.Help, c.Name)
		names[c.Name] = true
	}
	require.Len(t, names, 13)
}

func TestAddLists(t *testing.T) {
	sum := AddLists(nil, []verbs.Counter{{Name: "a", Value: 1, Port: 1}, {Name: "w", Value: 5, Unit: "nanoseconds"}})
	sum = AddLists(sum, []verbs.Counter{{Name: "a", Value: 2, Port: 1}, {Name: "a", Value: 3, Port: 2}, {Name: "w", Value: 4, Unit: "nanoseconds"}})
	require.Equal(t, []uint64{3, 5, 3}, []uint64{sum[0].Value, sum[1].Value, sum[2].Value})
}
