package timers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The heap against a map: each entry has its owner's deadline and place, and follows its parent.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[int]
		all := make([]Timer[int], 20)
		want := make(map[int]time.Duration)
		for i := range all {
			all[i].Owner = i
		}
		pick := func(t *rapid.T) *Timer[int] { return &all[rapid.IntRange(0, len(all)-1).Draw(t, "timer")] }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				x, at := pick(t), time.Duration(rapid.IntRange(1, 50).Draw(t, "at"))
				h.Set(x, at)
				want[x.Owner] = at
			},
			"remove": func(t *rapid.T) {
				x := pick(t)
				h.Remove(x)
				delete(want, x.Owner)
			},
			"": func(t *rapid.T) {
				require.Len(t, h, len(want))
				n := 0
				for owner := range h.All() {
					require.Contains(t, want, owner)
					n++
				}
				require.Equal(t, len(want), n)
				for i, x := range h {
					require.Equal(t, want[x.Owner], x.at)
					require.Equal(t, want[x.Owner], x.At())
					require.Equal(t, i+1, x.place)
					require.LessOrEqual(t, h[max(i-1, 0)/2].at, x.at)
				}
				for i := range all {
					_, in := want[i]
					require.Equal(t, in, all[i].Queued())
				}
				if first := h.First(); first == nil {
					require.Empty(t, want)
				} else {
					require.Same(t, first, h.Due(first.At()))
					require.Nil(t, h.Due(first.At()-1))
				}
			},
		})
	})
}
