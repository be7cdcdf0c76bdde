// Command sync_event_local shows a sync event, a 64-bit value that goroutines and tasks
// wait for and change, within one program. It has three parts:
//
//   - synchronous: a goroutine waits, and sleeps meanwhile; another sets the value;
//   - asynchronous: the same with tasks on an engine, where waiting costs nothing;
//   - atomic: several goroutines add to the value, and no addition gets lost.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/syncevent"
)

const (
	all    = ^uint64(0) // the mask of a wait for the whole value
	adders = 8
	adds   = 10_000 // of each
)

func main() {
	sample.Main(sample.Program{
		Name:   "sync_event_local",
		About:  "Waits on a sync event and sets it: synchronously, with tasks, and by adding to it.",
		Device: "soft-lo",
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	// An event within one program needs no device. With one, it could be exported
	// to peers too.
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	event, err := syncevent.New(dev, syncevent.Config{})
	if err != nil {
		return err
	}
	defer sample.Close(&err, event.Close)

	for _, part := range []func(context.Context, *sample.Session, *syncevent.Event) error{
		synchronous, asynchronous, atomic,
	} {
		if err := event.Set(0); err != nil {
			return err
		}
		if err := part(ctx, s, event); err != nil {
			return err
		}
	}
	return nil
}

// synchronous starts a goroutine that waits for the value that this one sets, and
// answers with another.
func synchronous(ctx context.Context, s *sample.Session, event *syncevent.Event) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, err := event.WaitGreater(ctx, 0, all)
		if err == nil {
			err = event.Set(2)
		}
		if err != nil {
			cancel(err)
		}
	}()
	err := event.Set(1)
	if err == nil {
		_, err = event.WaitEqual(ctx, 2, all)
	}
	if err != nil {
		cancel(err)
	}
	<-answered
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.Print("synchronous: 1 was set, and answered with 2")
	return nil
}

// asynchronous is the same with tasks: one waits, one sets.
func asynchronous(ctx context.Context, s *sample.Session, event *syncevent.Event) (err error) {
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close)
	c, err := syncevent.NewContext(syncevent.ContextConfig{Engine: engine})
	if err != nil {
		return err
	}
	defer sample.Close(&err, c.Close)
	waits, err := c.WaitPool(1, pe.Done, pe.Failed)
	if err != nil {
		return err
	}
	sets, err := c.SetPool(1, pe.Done, pe.Failed)
	if err != nil {
		return err
	}

	left := 2
	finish := func(err error) {
		c.Fail(err)
		if left--; left == 0 {
			c.Stop()
		}
	}
	// One task waits until the value is greater than 41.
	wait := func() error {
		t, err := waits.Greater(event, 41, all)
		return pe.SubmitNew(t, err, func(t *syncevent.WaitTask, err error) {
			if err == nil {
				s.Print("asynchronous: a task has waited until the value was %d", t.Value())
			}
			finish(errors.Join(err, t.Free()))
		})
	}
	// The other sets it to 42.
	set := func() error {
		t, err := sets.Alloc(event, 42)
		return pe.SubmitNew(t, err, func(t *syncevent.SetTask, err error) { finish(errors.Join(err, t.Free())) })
	}
	c.OnStateChange(func(prev, next pe.State) {
		if next == pe.Running {
			c.Fail(wait())
			c.Fail(set())
		}
	})
	if err := c.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// atomic has goroutines add one, again and again. Each addition returns the value
// before: no two may return the same.
func atomic(_ context.Context, s *sample.Session, event *syncevent.Event) error {
	var olds [adders][]uint64
	var failed [adders]error
	var group sync.WaitGroup
	begin := make(chan struct{})
	for i := range adders {
		group.Go(func() {
			<-begin // together
			for range adds {
				old, err := event.Add(1)
				if err != nil {
					failed[i] = err
					return
				}
				olds[i] = append(olds[i], old)
			}
		})
	}
	close(begin)
	group.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	different := make(map[uint64]bool)
	for _, list := range olds {
		for _, old := range list {
			different[old] = true
		}
	}
	sum, err := event.Get()
	if err != nil {
		return err
	}
	if sum != adders*adds || len(different) != adders*adds {
		return fmt.Errorf("after %d additions the value is %d, and %d old values were different", adders*adds, sum, len(different))
	}
	s.Print("atomic: %d goroutines have added 1 %d times each, the value is %d, all values before were different", adders, adds, sum)
	return nil
}
