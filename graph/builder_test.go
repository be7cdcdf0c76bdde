package graph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/test/petest"
)

func nop(int) error { return nil }

func TestBuildRefusals(t *testing.T) {
	for want, build := range map[string]func(b *graph.Builder[int]){
		`it has no nodes`: func(*graph.Builder[int]) {},
		`node "a" has no function`: func(b *graph.Builder[int]) {
			b.Func("a", nil)
		},
		`node "a" has no function that allocates its task`: func(b *graph.Builder[int]) {
			graph.Task[int, *petest.Job](b, "a", nil, nil)
		},
		`node 2 has no name`: func(b *graph.Builder[int]) {
			b.Func("a", nop)
			b.Func("", nop)
		},
		`two nodes are named "a"`: func(b *graph.Builder[int]) {
			b.Func("a", nop)
			b.Func("a", nop)
		},
		`node "a" has an edge to itself`: func(b *graph.Builder[int]) {
			a := b.Func("a", nop)
			b.Edge(a, a)
		},
		`there are two edges from "a" to "b"`: func(b *graph.Builder[int]) {
			x, y := b.Func("a", nop), b.Func("b", nop)
			b.Edge(x, y)
			b.Edge(x, y)
		},
		`the edge from "a" to nil has a node that is not of this graph`: func(b *graph.Builder[int]) {
			b.Edge(b.Func("a", nop), nil)
		},
		`the edge from a node of another graph to "a" has`: func(b *graph.Builder[int]) {
			b.Edge(graph.NewBuilder[int]("other").Func("a", nop), b.Func("a", nop))
		},
	} {
		t.Run(want, func(t *testing.T) {
			b := graph.NewBuilder[int]("g")
			build(b)
			g, err := b.Build()
			require.Nil(t, g)
			require.ErrorIs(t, err, graph.ErrInvalid)
			require.ErrorContains(t, err, `graph: build "g": invalid argument: `+want)
		})
	}
}

// All that is wrong is reported at once.
func TestBuildReportsEverything(t *testing.T) {
	b := graph.NewBuilder[int]("g")
	x, y := b.Func("x", nil), b.Func("y", nop)
	b.Chain(x, y, x)
	_, err := b.Build()
	require.ErrorIs(t, err, graph.ErrInvalid)
	require.ErrorIs(t, err, graph.ErrCycle)
}

func TestBuildOnce(t *testing.T) {
	b := graph.NewBuilder[int]("g")
	x := b.Func("x", nop)
	_, err := b.Build()
	require.NoError(t, err)
	y := b.Func("y", nop)
	b.Edge(x, y)
	_, err = b.Build()
	require.ErrorContains(t, err, "comes after Build")
	require.ErrorContains(t, err, "built before")
}

func TestCycle(t *testing.T) {
	b := graph.NewBuilder[int]("g")
	in, x, y, z, out := b.Func("in", nop), b.Func("x", nop), b.Func("y", nop), b.Func("z", nop), b.Func("out", nop)
	b.Chain(in, x, y, z, out)
	b.Edge(z, x)
	_, err := b.Build()
	var cycle *graph.CycleError
	require.ErrorAs(t, err, &cycle)
	require.Equal(t, []string{"x", "y", "z"}, cycle.Nodes)
	require.ErrorIs(t, err, graph.ErrCycle)
	require.ErrorContains(t, err, "x → y → z → x")
}

// A cycle is found if and only if there is one, and what is found is one.
func TestCycleModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(rt, "nodes")
		b := graph.NewBuilder[int]("g")
		nodes := make([]*graph.Node, n)
		for i := range nodes {
			nodes[i] = b.Func(fmt.Sprint(i), nop)
		}
		edges := map[[2]int]bool{}
		reach := make([][]bool, n)
		for i := range reach {
			reach[i] = make([]bool, n)
		}
		for range rapid.IntRange(0, 12).Draw(rt, "edges") {
			e := [2]int{rapid.IntRange(0, n-1).Draw(rt, "from"), rapid.IntRange(0, n-1).Draw(rt, "to")}
			if e[0] != e[1] && !edges[e] {
				edges[e], reach[e[0]][e[1]] = true, true
				b.Edge(nodes[e[0]], nodes[e[1]])
			}
		}
		for k := range n {
			for i := range n {
				for j := range n {
					reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
				}
			}
		}
		cyclic := false
		for i := range n {
			cyclic = cyclic || reach[i][i]
		}
		_, err := b.Build()
		if !cyclic {
			require.NoError(rt, err)
			return
		}
		var cycle *graph.CycleError
		require.ErrorAs(rt, err, &cycle)
		for i, name := range cycle.Nodes {
			var from, to int
			_, _ = fmt.Sscan(name, &from)
			_, _ = fmt.Sscan(cycle.Nodes[(i+1)%len(cycle.Nodes)], &to)
			require.True(rt, edges[[2]int{from, to}], "no edge from %d to %d", from, to)
		}
	})
}
