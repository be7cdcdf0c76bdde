package syncevent_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// One goroutine counts what it has done, another waits until it is enough.
func Example() {
	done, err := syncevent.New(nil, syncevent.Config{Name: "done"})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for range 3 {
			if _, err := done.Add(1); err != nil {
				fmt.Println(err)
			}
		}
	}()
	value, err := done.WaitGreater(context.Background(), 2, ^uint64(0))
	fmt.Println(value, err)
	fmt.Println(done.Close())
	// Output:
	// 3 <nil>
	// <nil>
}

// One side makes an event that its peer may change, and waits; the peer imports
// it and works on it with the sync event tasks of package rdma.
func ExampleEvent_Export() {
	owner := func(ctx context.Context, dev verbs.Device, send func(desc []byte) error) error {
		ready, err := syncevent.New(dev, syncevent.Config{Publishers: syncevent.PublishRemote})
		if err != nil {
			return err
		}
		desc, err := ready.Export()
		if err != nil {
			return err
		}
		if err := send(desc); err != nil {
			return err
		}
		if _, err := ready.WaitEqual(ctx, 1, ^uint64(0)); err != nil {
			return err
		}
		return ready.Close()
	}
	peer := func(dev verbs.Device, desc []byte) error {
		ready, err := syncevent.Import(dev, desc)
		if err != nil {
			return err
		}
		_, err = ready.Get() // its value is not here
		fmt.Println(err)
		return ready.Close()
	}
	// Both run with devices that package device has opened, and a connection.
	_, _ = owner, peer
}

// The same with tasks: the engine sleeps until the condition holds.
func ExampleContext() {
	event, err := syncevent.New(nil, syncevent.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	engine := pe.New(pe.Config{})
	events, err := syncevent.NewContext(syncevent.ContextConfig{Engine: engine})
	if err != nil {
		fmt.Println(err)
		return
	}
	waits, err := events.WaitPool(1,
		func(wait *syncevent.WaitTask) {
			fmt.Println("the value is", wait.Value())
			_ = wait.Free()
			_ = events.Stop()
		},
		func(wait *syncevent.WaitTask, err error) {
			_ = wait.Free()
			events.Fail(err) // Run returns it
		})
	if err != nil {
		fmt.Println(err)
		return
	}
	events.OnStateChange(func(_, next pe.State) {
		fmt.Println(next)
		if next != pe.Running {
			return
		}
		wait, err := waits.Greater(event, 41, ^uint64(0))
		if err == nil {
			if err = wait.Submit(); err != nil {
				_ = wait.Free() // it is still ours
			}
		}
		events.Fail(err) // nil does nothing
		go func() {
			if err := event.Set(42); err != nil {
				fmt.Println(err)
			}
		}()
	})
	if err := events.Start(); err != nil {
		fmt.Println(err)
		return
	}
	if err := engine.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	if err := engine.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// Running
	// the value is 42
	// Stopping
	// Idle
}
