package fifo

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestQueueAgainstASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		var want []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, len(want), q.Len())
				require.Equal(t, append([]int(nil), want...), slices.Collect(q.All()))
			},
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					q.Push(next)
					want = append(want, next)
					next++
				}
			},
			"pop": func(t *rapid.T) {
				for range rapid.IntRange(0, len(want)).Draw(t, "n") {
					require.Equal(t, want[0], q.Front())
					require.Equal(t, want[0], q.Pop())
					want = want[1:]
				}
			},
			"clear": func(*rapid.T) {
				q.Clear()
				want = nil
			},
		})
	})
}

// A queue that is never empty, such as that of the changes of two contexts that
// start and stop for ever, does not grow.
func TestQueueThatIsNeverEmpty(t *testing.T) {
	var q Queue[int]
	next := 0
	for range 3 {
		q.Push(next)
		next++
	}
	for i := range 100_000 {
		require.Equal(t, i, q.Pop())
		q.Push(next)
		next++
	}
	require.Equal(t, 3, q.Len())
	require.Len(t, q.ring, smallest)
}

func TestQueueKeepsNothingAlive(t *testing.T) {
	var q Queue[*int]
	for range 20 {
		q.Push(new(int))
	}
	for range 10 {
		q.Pop()
	}
	q.Clear()
	for _, p := range q.ring {
		require.Nil(t, p)
	}
	require.Panics(t, func() { q.Pop() })
}

type element struct {
	Node[*element]
	id int
}

func newElement(id int) *element {
	e := &element{id: id}
	e.Value = e
	return e
}

func TestListAgainstASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l, other List[*element]
		var in, out []*element
		for i := range 10 {
			out = append(out, newElement(i))
		}
		check := func(t *rapid.T) {
			require.Equal(t, len(in), l.Len())
			e := l.Front()
			for i, want := range in {
				require.Same(t, want, e.Value)
				require.Equal(t, i == len(in)-1, e.Next() == nil)
				require.True(t, e.Queued())
				e = e.Next()
			}
			require.Nil(t, e)
			require.Equal(t, len(in), len(l.Values()))
			for i, v := range l.Values() {
				require.Same(t, in[i], v)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": check,
			"push": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("all are in the list")
				}
				e := out[0]
				require.False(t, e.Queued())
				require.False(t, l.Remove(&e.Node))
				l.Push(&e.Node)
				require.Panics(t, func() { l.Push(&e.Node) })
				require.False(t, other.Remove(&e.Node))
				out, in = out[1:], append(in, e)
			},
			"pop": func(t *rapid.T) {
				e := l.Pop()
				if len(in) == 0 {
					require.Nil(t, e)
					return
				}
				require.Same(t, in[0], e.Value)
				in, out = in[1:], append(out, e.Value)
			},
			"remove": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip("the list is empty")
				}
				i := rapid.IntRange(0, len(in)-1).Draw(t, "which")
				e := in[i]
				require.True(t, l.Remove(&e.Node))
				in = append(in[:i:i], in[i+1:]...)
				out = append(out, e)
			},
		})
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	var q Queue[int]
	var l List[*element]
	elements := []*element{newElement(0), newElement(1), newElement(2)}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		for i := range 5 {
			q.Push(i)
		}
		for q.Len() > 0 {
			q.Pop()
		}
		for _, e := range elements {
			l.Push(&e.Node)
		}
		for l.Pop() != nil {
		}
	}))
}

func BenchmarkQueue(b *testing.B) {
	var q Queue[*element]
	e := newElement(0)
	b.ReportAllocs()
	for b.Loop() {
		q.Push(e)
		q.Pop()
	}
}

func BenchmarkList(b *testing.B) {
	var l List[*element]
	e := newElement(0)
	b.ReportAllocs()
	for b.Loop() {
		l.Push(&e.Node)
		l.Pop()
	}
}
