package graph_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/pe"
)

// Two words are made, in whatever order, and then joined.
func Example() {
	type sentence struct{ first, second string }

	b := graph.NewBuilder[*sentence]("greeting")
	hello := b.Func("hello", func(s *sentence) error { s.first = "hello"; return nil })
	world := b.Func("world", func(s *sentence) error { s.second = "world"; return nil })
	join := b.Func("join", func(s *sentence) error {
		_, err := fmt.Println(s.first, s.second)
		return err
	})
	b.Edge(hello, join)
	b.Edge(world, join)
	g, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	stop := func(i *graph.Instance[*sentence], err error) {
		if err != nil {
			fmt.Println(err)
		}
		_ = i.Free()
		_ = g.Stop()
	}
	pool, err := g.Pool(1, func(i *graph.Instance[*sentence]) { stop(i, nil) }, stop)
	if err != nil {
		fmt.Println(err)
		return
	}

	engine := pe.New(pe.Config{})
	_ = engine.Connect(g)
	_ = g.Start()
	run, _ := pool.Alloc(&sentence{})
	_ = run.Submit()
	fmt.Println(engine.Run(context.Background()))
	// Output:
	// hello world
	// <nil>
}
