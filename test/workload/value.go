package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Values for atomics.
const (
	firstValue = 1 // the responder's value at the beginning
	swapped    = 0xd0ca
	addend     = 5
)

// changes makes a requester that changes the responder's value with atomics, one after the other.
// next is the atomic's effect on a value.
func changes(times int, next func(uint64) uint64, newTask func(*rdma.Pool, *rdma.Connection, *bufinv.Buf) (*rdma.Task, error)) work {
	return func(ctx context.Context, e *end) (err error) {
		if e.local, err = mmap.Alloc(e.dev, 8, mmap.LocalReadWrite); err != nil {
			return err
		}
		pool, err := e.rdma.Pool(1, pe.TaskDone, pe.TaskFailed)
		if err != nil {
			return err
		}
		if _, err := e.connect(ctx); err != nil {
			return err
		}
		value := uint64(firstValue)
		for range times {
			err := await.Task(ctx, e.engine, func() (*rdma.Task, error) {
				t, err := newTask(pool, e.conns[0], e.bufs.Target(e.theirs.Maps[0], 0, 8))
				if err == nil {
					if err = t.SetResult(e.bufs.Target(e.local, 0, 8)); err != nil {
						err = errors.Join(err, t.Free())
					}
				}
				return t, err
			}, func(t *rdma.Task) error {
				result := t.Result().Bytes()
				if t.Original() != value || len(result) != 8 || binary.NativeEndian.Uint64(result) != value {
					return fmt.Errorf("found %d, in the buffer %x, want %d", t.Original(), result, value)
				}
				return nil
			})
			if err != nil {
				return err
			}
			value = next(value)
		}
		e.print("left: %s", word(value))
		return e.finish(ctx)
	}
}

// holds is the responder for atomics: its device operates on its value.
func holds(ctx context.Context, e *end) (err error) {
	if e.memory, err = mmap.Alloc(e.dev, 8, mmap.LocalReadWrite|mmap.RemoteAtomic); err != nil {
		return err
	}
	value := (*uint64)(unsafe.Pointer(unsafe.SliceData(e.memory.Bytes())))
	atomic.StoreUint64(value, firstValue)
	if _, err = e.connect(ctx); err == nil {
		err = e.finish(ctx)
	}
	if err == nil {
		e.print("left: %s", word(atomic.LoadUint64(value)))
	}
	return err
}

// Values of the sync event. The requester sets the first, and adds 1 as often as -n says, over
// all connections at the same time. The responder adds 1 as often as -local says. The
// requester polls for the sum, and sets the last.
const (
	question = 0xd0ca
	finished = math.MaxUint64
)

// depth is the number of additions in flight on a connection.
const depth = 8

// sum is the value of the event after all additions.
func (e *end) sum() uint64 { return question + uint64(e.n+e.added) }

// checkSum fails if an addition was lost or made twice.
func (e *end) checkSum(v uint64) error {
	if v != e.sum() {
		return fmt.Errorf("an addition was lost or made twice: the event is %d, want %d", v, e.sum())
	}
	e.print("added to: %s", word(v))
	return nil
}

// spread calls add n times, on goroutines that take turns, and returns the first error.
func spread(n, goroutines int, add func(goroutine int) error) error {
	var adding sync.WaitGroup
	failures := make([]error, goroutines)
	for i := range failures {
		adding.Go(func() {
			for k := i; k < n && failures[i] == nil; k += goroutines {
				failures[i] = add(i)
			}
		})
	}
	adding.Wait()
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// eventTask runs one task on the peer's event, and returns the value before it.
func (e *end) eventTask(ctx context.Context, alloc func(event *syncevent.Event) (*rdma.Task, error)) (was uint64, err error) {
	err = await.Task(ctx, e.engine, func() (*rdma.Task, error) { return alloc(e.theirs.Events[0]) }, func(t *rdma.Task) error {
		was = t.Original()
		return nil
	})
	return was, err
}

// signals is the requester of sync events.
func signals(ctx context.Context, e *end) error {
	pool, err := e.rdma.Pool(depth*e.connections, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	if _, err := e.connect(ctx); err != nil {
		return err
	}
	set := func(v uint64) error {
		_, err := e.eventTask(ctx, func(event *syncevent.Event) (*rdma.Task, error) { return pool.SyncEventSet(e.conns[0], event, v) })
		if err == nil {
			e.print("set: %s", word(v))
		}
		return err
	}
	if err := set(question); err != nil {
		return err
	}
	err = spread(e.n, depth*e.connections, func(i int) error {
		_, err := e.eventTask(ctx, func(event *syncevent.Event) (*rdma.Task, error) {
			return pool.SyncEventAdd(e.conns[i%e.connections], event, 1)
		})
		return err
	})
	// The responder may still add.
	v := uint64(question + e.n)
	for err == nil && v < e.sum() && v >= question+uint64(e.n) {
		v, err = e.eventTask(ctx, func(event *syncevent.Event) (*rdma.Task, error) { return pool.SyncEventGet(e.conns[0], event) })
	}
	if err != nil {
		return err
	}
	if err := e.checkSum(v); err != nil {
		return err
	}
	if err := set(finished); err != nil {
		return err
	}
	return e.finish(ctx)
}

// waits is the responder of sync events. It submits nothing: it waits, and adds on as many
// goroutines as there are connections.
func waits(ctx context.Context, e *end) (err error) {
	cfg := syncevent.Config{Publishers: syncevent.PublishLocal | syncevent.PublishRemote}
	// On an adapter, additions of the two ends at the same time can be lost.
	cfg.NeverConcurrent = e.n == 0 || e.added == 0
	if e.event, err = syncevent.New(e.dev, cfg); err != nil {
		return err
	}
	working, err := e.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := e.event.Wait(working, syncevent.Greater(question-1)); err != nil {
		return err
	}
	e.print("set: %s", word(question))
	err = spread(e.added, e.connections, func(int) error {
		_, err := e.event.Add(1)
		return cmp.Or(err, context.Cause(working))
	})
	if err != nil {
		return err
	}
	v, err := e.event.Wait(working, syncevent.Greater(e.sum()-1))
	if err != nil {
		return err
	}
	if v == finished { // the requester has checked the sum
		v = e.sum()
	}
	if err := e.checkSum(v); err != nil {
		return err
	}
	if v, err = e.event.Wait(working, syncevent.Greater(finished-1)); err != nil {
		return err
	}
	e.print("set: %s", word(v))
	return e.finish(ctx)
}

// counts is either end of a count in turns: it adds 1 to the peer's event when its own shows
// that the peer has added, -n times. The requester makes each step before the responder. A lost
// step stops both; a repeated one is an error.
func counts(ctx context.Context, e *end) (err error) {
	cfg := syncevent.Config{Publishers: syncevent.PublishRemote, PollInterval: 50 * time.Microsecond}
	if !e.requester { // it sets its own event at the end
		cfg.Publishers, cfg.NeverConcurrent = syncevent.PublishRemote|syncevent.PublishLocal, true
	}
	if e.event, err = syncevent.New(e.dev, cfg); err != nil {
		return err
	}
	if e.events, err = syncevent.NewContext(syncevent.ContextConfig{Engine: e.engine}); err != nil {
		return err
	}
	pool, err := e.rdma.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	steps, err := e.events.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	if err := e.events.Start(); err != nil {
		return err
	}
	working, err := e.connect(ctx)
	if err != nil {
		return err
	}
	add := func(i int) error {
		was, err := e.eventTask(working, func(event *syncevent.Event) (*rdma.Task, error) { return pool.SyncEventAdd(e.conns[0], event, 1) })
		if err == nil && was != uint64(i) {
			err = fmt.Errorf("addition %d returned the value %d", i+1, was)
		}
		return err
	}
	wait := func(i int) error {
		return await.Task(working, e.engine, func() (*syncevent.Task, error) { return steps.Wait(e.event, syncevent.Greater(uint64(i))) }, func(t *syncevent.Task) error {
			if v := t.Original(); v != uint64(i+1) {
				return fmt.Errorf("step %d was lost or made twice: the value is %d", i+1, v)
			}
			return nil
		})
	}
	first, second := wait, add
	if e.requester {
		first, second = add, wait
	}
	for i := range e.n {
		if err := first(i); err != nil {
			return err
		}
		if err := second(i); err != nil {
			return err
		}
	}
	e.print("counted to: %s", word(uint64(e.n)))
	if !e.requester {
		// All tasks of this end have completed. The requester keeps the connection until then.
		if err := e.event.Set(finished); err != nil {
			return err
		}
		return e.finish(ctx)
	}
	for {
		v, err := e.eventTask(ctx, func(event *syncevent.Event) (*rdma.Task, error) { return pool.SyncEventGet(e.conns[0], event) })
		switch {
		case err != nil:
			return err
		case v == finished:
			return e.finish(ctx)
		case v != uint64(e.n):
			return fmt.Errorf("the responder's event is %d, want %d", v, e.n)
		}
	}
}
