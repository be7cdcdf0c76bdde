package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestTimers compares the heap with a map.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h timers
		qps := make([]*queuePair, 20)
		for i := range qps {
			qps[i] = &queuePair{}
		}
		model := make(map[*queuePair]time.Duration)
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			q := rapid.SampledFrom(qps).Draw(t, "queue pair")
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				h.remove(q)
				delete(model, q)
			} else {
				at := time.Duration(rapid.IntRange(1, 30).Draw(t, "at"))
				h.set(q, at)
				model[q] = at
			}
			require.Len(t, h, len(model))
			for i, q := range h {
				require.Equal(t, model[q], q.timer.at)
				require.Equal(t, i+1, q.timer.place)
				require.LessOrEqual(t, h[max(i-1, 0)/2].timer.at, q.timer.at)
			}
		}
	})
}

// TestReadyList compares the list with a slice.
func TestReadyList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l readyList
		qps := make([]*queuePair, 6)
		for i := range qps {
			qps[i] = &queuePair{num: uint32(i)}
		}
		var model []uint32
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			q := rapid.SampledFrom(qps).Draw(t, "queue pair")
			at := -1
			for i, num := range model {
				if num == q.num {
					at = i
				}
			}
			if rapid.Bool().Draw(t, "push") {
				l.push(q)
				if at < 0 {
					model = append(model, q.num)
				}
			} else {
				l.remove(q)
				if at >= 0 {
					model = append(model[:at:at], model[at+1:]...)
				}
			}
			var forth, back []uint32
			for q := l.first; q != nil; q = q.ready.next {
				forth = append(forth, q.num)
			}
			for q := l.last; q != nil; q = q.ready.previous {
				back = append([]uint32{q.num}, back...)
			}
			require.Equal(t, len(model), len(forth))
			for i := range model {
				require.Equal(t, model[i], forth[i])
				require.Equal(t, model[i], back[i])
			}
			require.Equal(t, len(model) == 0, l.empty())
		}
	})
}
