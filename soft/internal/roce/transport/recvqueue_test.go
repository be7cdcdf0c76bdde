package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/verbs"
)

// TestRecvQueue compares a queue of receives with a slice. Some have no memory, and some of those
// the same ID.
func TestRecvQueue(t *testing.T) {
	type posted struct {
		id    uint64
		fault bool
	}
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.IntRange(1, 40).Draw(t, "depth")
		q := NewRecvQueue(NewMemory(), testDomain, depth, 2)
		var model []posted
		var w Receive
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				q.Clear()
				model = nil
			case 1, 2, 3:
				require.Equal(t, len(model) > 0, q.Take(&w))
				if len(model) > 0 {
					require.Equal(t, model[0], posted{w.id, w.fault})
					require.Zero(t, w.more)
					model = model[1:]
					q.taken--
				}
			default:
				wrs := make([]verbs.RecvWR, rapid.IntRange(1, 8).Draw(t, "n"))
				for i := range wrs {
					wrs[i].ID = uint64(rapid.IntRange(0, 1).Draw(t, "id"))
					if rapid.IntRange(0, 3).Draw(t, "memory") == 0 {
						wrs[i].SGL = []verbs.SGE{{Addr: 1, Length: 8, LKey: 99}} // no such key
					}
				}
				n, err := q.Post(wrs)
				require.Equal(t, min(len(wrs), depth-len(model)), n)
				require.Equal(t, n < len(wrs), err != nil)
				for _, wr := range wrs[:n] {
					model = append(model, posted{wr.ID, len(wr.SGL) > 0})
				}
			}
			require.Equal(t, len(model), q.Len())
			require.Equal(t, len(model) == depth, q.Full())
		}
	})
}

// Receives that are alike and have no memory take the memory of one.
func TestReceivesWithoutMemory(t *testing.T) {
	const n = 1 << 16
	q := NewRecvQueue(NewMemory(), testDomain, n+1, 1)
	wrs := make([]verbs.RecvWR, n+1)
	for i := range wrs {
		wrs[i].ID = 7
	}
	posted, err := q.Post(wrs)
	require.NoError(t, err)
	require.Equal(t, n+1, posted)
	require.LessOrEqual(t, len(q.ring.items), 2)
	var w Receive
	for range wrs {
		require.True(t, q.Take(&w))
		require.Equal(t, uint64(7), w.id)
	}
	require.False(t, q.Take(&w))
}
