package deadline

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each deadline is due once, in order, when it has passed, however it was moved before.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan struct{}, 1)
		var all Deadlines
		all.Open(host.System, func() { woken <- struct{}{} })
		rng := rand.New(rand.NewPCG(1, 1))
		began := time.Now()
		var due, want []int
		list := make([]Deadline, 100)
		for i := range list {
			list[i].Init(&all, func(now time.Time) {
				require.Equal(t, began.Add(time.Duration(i)*time.Second), now)
				require.True(t, list[i].At().IsZero())
				due = append(due, i)
			})
			list[i].Set(began.Add(time.Duration(1+rng.IntN(1000)) * time.Second))
		}
		for _, i := range rng.Perm(len(list)) {
			if i%3 == 0 {
				list[i].Set(time.Time{})
				continue
			}
			list[i].Set(began.Add(time.Duration(i) * time.Second))
			want = append(want, i)
		}
		slices.Sort(want)
		require.Zero(t, all.Work(), "none is due")
		for len(due) < len(want) {
			<-woken
			require.True(t, all.Busy())
			all.Work()
		}
		require.Equal(t, want, due)
		require.False(t, all.Busy())
		list[0].Set(time.Now().Add(time.Hour))
		all.Close()
		time.Sleep(2 * time.Hour)
		require.False(t, all.Busy(), "the timer was stopped")
	})
}
