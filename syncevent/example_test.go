package syncevent_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
)

// One goroutine counts what it has done, another waits until it is enough.
func ExampleEvent() {
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
	value, err := done.Wait(context.Background(), syncevent.Greater(2))
	fmt.Println(value, err)
	fmt.Println(done.Close())
	// Output:
	// 3 <nil>
	// <nil>
}

// One side makes an event that its peer may change, and waits; the peer imports
// it, and works on it with the sync event tasks of package rdma.
func ExampleEvent_Export() {
	ours, theirs := must(device.Open("soft-lo")), must(device.Open("soft-lo"))
	ready := must(syncevent.New(ours, syncevent.Config{Publishers: syncevent.PublishRemote}))
	desc := must(ready.Export()) // bytes, for the peer

	imported := must(syncevent.Import(theirs, desc))
	_, err := imported.Get() // its value is not here
	fmt.Println(errors.Is(err, syncevent.ErrRemote))
	fmt.Println(errors.Join(imported.Close(), ready.Close(), ours.Close(), theirs.Close()))
	// Output:
	// true
	// <nil>
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
	waits, err := events.Pool(1,
		func(wait *syncevent.Task) {
			fmt.Println("the value is", wait.Original())
			_ = wait.Free()
			_ = events.Stop()
		},
		func(wait *syncevent.Task, err error) {
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
		wait, err := waits.Wait(event, syncevent.Greater(41))
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

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
