package await_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
)

// events is a context of sync events, which needs no device, on an engine that another
// goroutine drives until stop is called.
func events() (c *syncevent.Context, stop func() error) {
	engine := pe.New(pe.Config{})
	c, err := syncevent.NewContext(syncevent.ContextConfig{Engine: engine})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- await.Run(ctx, engine) }()
	return c, func() error {
		cancel()
		if err := <-stopped; !errors.Is(err, context.Canceled) {
			return err
		}
		return engine.Close()
	}
}

// What belongs to the engine's goroutine is done there.
func ExampleFunc() {
	c, stop := events()
	inFlight := 0
	err := await.Func(context.Background(), c.Engine(), func() error {
		inFlight = c.Engine().InFlight()
		return c.Start()
	})
	fmt.Println(inFlight, err, c.State())
	fmt.Println(stop())
	// Output:
	// 0 <nil> Running
	// <nil>
}

func ExampleState() {
	c, stop := events()
	if err := await.Start(context.Background(), c); err != nil {
		fmt.Println(err)
	}
	go func() {
		_ = c.Engine().Do(func() { _ = c.Stop() })
	}()
	fmt.Println(await.State(context.Background(), c, pe.Idle))
	fmt.Println(stop())
	// Output:
	// <nil>
	// <nil>
}

// A task is allocated, submitted, waited for and freed. Tasks of packages rdma, dma and graph
// are no different.
func ExampleTask() {
	c, stop := events()
	adds, err := c.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		fmt.Println(err)
		return
	}
	event, err := syncevent.New(nil, syncevent.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(event.Set(40), await.Start(context.Background(), c))
	var before uint64
	err = await.Task(context.Background(), c.Engine(),
		func() (*syncevent.Task, error) { return adds.Add(event, 2) },
		func(t *syncevent.Task) error {
			before = t.Original()
			return nil
		})
	fmt.Println(before, err)
	fmt.Println(event.Get())
	fmt.Println(stop(), event.Close())
	// Output:
	// <nil> <nil>
	// 40 <nil>
	// 42 <nil>
	// <nil> <nil>
}
