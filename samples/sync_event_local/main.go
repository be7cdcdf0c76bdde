// Command sync_event_local shows a sync event, a 64-bit value that goroutines and tasks
// wait for and change, within one program. It has three parts:
//
//   - synchronous: one goroutine sleeps until another sets the value;
//   - asynchronous: the same with tasks on an engine, where waiting costs nothing;
//   - atomic: several goroutines add to the value, and no addition gets lost.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/syncevent"
)

const adders, adds = 8, 10_000 // additions of each adder

func main() {
	info := sample.Program{Name: "sync_event_local", About: "Waits on a sync event and sets it: synchronously, with tasks, and by adding to it.", Device: "soft-lo"}
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)                  // and the event
	event, err := syncevent.New(dev, syncevent.Config{}) // without a device it could not be exported to peers
	if err != nil {
		return err
	}
	for _, part := range []func(context.Context, *sample.Session, *syncevent.Event) error{synchronous, asynchronous, adding} {
		if err := errors.Join(event.Set(0), part(ctx, s, event)); err != nil {
			return err
		}
	}
	return nil
}

// synchronous sets the event, and waits for the answer of a goroutine that waits for the set.
func synchronous(ctx context.Context, s *sample.Session, event *syncevent.Event) error {
	done := make(chan error, 1)
	go func() {
		_, err := event.Wait(ctx, syncevent.Greater(0))
		done <- errors.Join(err, event.Set(2))
	}()
	err := event.Set(1)
	_, waited := event.Wait(ctx, syncevent.Equal(2))
	if err = errors.Join(err, waited, <-done); err == nil {
		s.Print("synchronous: 1 was set, and answered with 2")
	}
	return err
}

// asynchronous is the same with tasks: one waits until the value is greater than 41, one sets it to 42.
func asynchronous(ctx context.Context, s *sample.Session, event *syncevent.Event) (err error) {
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	c, err := syncevent.NewContext(syncevent.ContextConfig{Engine: engine})
	if err != nil {
		return err
	}
	waits, err := c.Pool(1, func(t *syncevent.Task) {
		s.Print("asynchronous: a task waited until the value was %d", t.Original())
		c.Fail(t.Free()) // Fail(nil) does nothing
	}, pe.FailContext)
	if err != nil {
		return err
	}
	sets, err := c.Pool(1, pe.FreeTask, pe.FailContext)
	if err != nil {
		return err
	}
	c.Fail(c.Start()) // such a context is Running at once
	wait, err := waits.Wait(event, syncevent.Greater(41))
	c.Fail(pe.SubmitOrFree(wait, err))
	set, err := sets.Set(event, 42)
	c.Fail(pe.SubmitOrFree(set, err))
	c.Fail(c.StopWhenDone())
	return engine.Run(ctx)
}

// adding starts goroutines that add 1 repeatedly. No two additions may find the same value.
func adding(_ context.Context, s *sample.Session, event *syncevent.Event) error {
	var found [adders * adds]atomic.Bool
	var different atomic.Int64
	var group sync.WaitGroup
	for range adders {
		group.Go(func() {
			for range adds {
				if old, err := event.Add(1); err == nil && !found[old].Swap(true) {
					different.Add(1)
				}
			}
		})
	}
	group.Wait()
	if sum, err := event.Get(); sum != adders*adds || different.Load() != adders*adds {
		return errors.Join(err, fmt.Errorf("after %d additions the value is %d, and %d distinct old values were returned", adders*adds, sum, different.Load()))
	}
	s.Print("atomic: %d goroutines have added 1 %d times each, the value is %d, all values before were different", adders, adds, adders*adds)
	return nil
}
