package graph_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/graph"
)

// Mistakes are found when the graph is built, all at once.
func ExampleGraph() {
	b := graph.NewBuilder[int]("circle")
	chicken := b.Func("chicken", func(int) error { return nil })
	egg := b.Func("egg", func(int) error { return nil })
	b.Edge(chicken, egg)
	b.Edge(egg, chicken)
	_, err := b.Build()
	var cycle *graph.CycleError
	fmt.Println(errors.As(err, &cycle), len(cycle.Nodes))
	// Output: true 2
}
