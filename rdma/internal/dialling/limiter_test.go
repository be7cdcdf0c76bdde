package dialling

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// So many dials to one address go out at a time, the others in the order in which they came. Those
// that are given up before their turn take none.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wakes := 0
		l := Limiter{Host: host.System, Wake: func() { wakes++ }}
		addr := netip.MustParseAddrPort("192.0.2.1:7")
		dials := make([]Dial, MaxOutstanding+4)
		var sent []int
		for i := range dials {
			out := l.Acquire(&dials[i], addr, func() { sent = append(sent, i) })
			require.Equal(t, i < MaxOutstanding, out)
		}
		require.True(t, l.Acquire(new(Dial), netip.MustParseAddrPort("192.0.2.2:7"), nil), "another address has its own limit")
		require.False(t, l.Busy())
		outstanding, waiting := l.Count(addr)
		require.Equal(t, [2]int{MaxOutstanding, 4}, [2]int{outstanding, waiting})

		l.Release(&dials[MaxOutstanding]) // given up
		require.Zero(t, l.Resume())
		l.Release(&dials[0])
		l.Release(&dials[0])
		require.True(t, l.Busy())
		require.Equal(t, 1, l.Resume())
		require.Equal(t, []int{MaxOutstanding + 1}, sent)
		require.False(t, l.Busy())
		require.Positive(t, wakes)

		// A dial without an answer delays others only for a while.
		at := dials[1].Earliest(time.Time{})
		require.Equal(t, time.Now().Add(outstandingTime), at)
		require.Equal(t, time.Now(), dials[1].Earliest(time.Now()))
		l.Due(&dials[1], time.Now())
		require.False(t, l.Busy())
		time.Sleep(outstandingTime)
		l.Due(&dials[1], time.Now())
		require.True(t, dials[1].Earliest(time.Time{}).IsZero())
		require.Equal(t, 1, l.Resume())
		require.Equal(t, []int{MaxOutstanding + 1, MaxOutstanding + 2}, sent)

		for i := range dials {
			l.Release(&dials[i])
		}
		l.Resume()
		require.Len(t, sent, 2, "the last was given up")
		require.Len(t, l.targets, 1, "nothing is left of the address")
		outstanding, waiting = l.Count(addr)
		require.Zero(t, outstanding+waiting)
	})
}
