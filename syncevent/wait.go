package syncevent

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	// spinTime is how long a wait looks at the value before it sleeps.
	spinTime = 50 * time.Microsecond
	// spinTurns bounds it where clocks stand still, as they do in testing/synctest.
	spinTurns = 2000
)

// waiter is somebody who sleeps until a condition holds.
type waiter struct {
	condition
	at   int           // index in Event.waiting
	seen uint64        // the value that fulfilled the condition
	bell chan struct{} // rung by waking; nil: task is told
	task *WaitTask
}

// WaitEqual waits until value == v & mask, for the event's value v, and returns
// v. It spins for about 50 µs and then sleeps without using the processor; see
// the package comment for who wakes it, and when. A value that the event has only
// for a moment may be missed.
//
// A mask of zero and a value with bits outside the mask are errors that match
// ErrInvalid. When ctx ends, the error is context.Cause(ctx). Otherwise it fails
// like Get.
func (e *Event) WaitEqual(ctx context.Context, value, mask uint64) (uint64, error) {
	return e.wait(ctx, condition{equal, value, mask})
}

// WaitNotEqual is WaitEqual for value != v & mask.
func (e *Event) WaitNotEqual(ctx context.Context, value, mask uint64) (uint64, error) {
	return e.wait(ctx, condition{notEqual, value, mask})
}

// WaitGreater is WaitEqual for v & mask > value, as unsigned numbers. A value
// that cannot be exceeded under the mask is an error that matches ErrInvalid. It
// is the wait for counters: one that only grows is never missed.
func (e *Event) WaitGreater(ctx context.Context, value, mask uint64) (uint64, error) {
	return e.wait(ctx, condition{greater, value, mask})
}

func (e *Event) wait(ctx context.Context, c condition) (uint64, error) {
	if err := e.begin("wait for", oneHold); err != nil {
		return 0, err
	}
	defer e.leave(oneHold)
	if ctx == nil {
		return 0, fmt.Errorf("wait for %v: %w: no context is given; context.Background() never ends", e, ErrInvalid)
	}
	if err := c.check(); err != nil {
		return 0, fmt.Errorf("wait for %v: %w", e, err)
	}
	if ctx.Err() != nil {
		return 0, e.abandoned(ctx, c)
	}
	if v, ok := e.spin(&c); ok {
		return v, nil
	}
	return e.sleep(ctx, c)
}

// sleep is the rest of a wait that spinning did not end.
func (e *Event) sleep(ctx context.Context, c condition) (uint64, error) {
	w := e.register(c)
	select {
	case <-w.bell:
	case <-ctx.Done():
		if e.withdraw(w) {
			e.giveBack(w)
			return 0, e.abandoned(ctx, c)
		}
		<-w.bell // it was just being rung
	}
	v := w.seen
	e.giveBack(w)
	return v, nil
}

func (e *Event) abandoned(ctx context.Context, c condition) error {
	return fmt.Errorf("wait for %v %v: %w; its value is %#x", e, c, context.Cause(ctx), e.load())
}

// spin looks at the value for a short while.
func (e *Event) spin(c *condition) (uint64, bool) {
	v := e.load()
	if c.holds(v) {
		return v, true
	}
	start := time.Now()
	for n := 0; n < spinTurns && time.Since(start) < spinTime; n++ {
		// Also lets the writer run where there is only one processor.
		runtime.Gosched()
		if v = e.load(); c.holds(v) {
			return v, true
		}
	}
	return 0, false
}

// register takes a waiter to sleep with.
func (e *Event) register(c condition) *waiter {
	e.mu.Lock()
	defer e.mu.Unlock()
	var w *waiter
	if last := len(e.spare) - 1; last >= 0 {
		w, e.spare = e.spare[last], e.spare[:last]
	} else {
		w = &waiter{bell: make(chan struct{}, 1)}
	}
	w.condition = c
	e.enlist(w)
	return w
}

func (e *Event) giveBack(w *waiter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = append(e.spare, w)
}

// enlist puts a waiter to sleep, and looks at the value once more: a writer
// changes the value first and looks for sleepers then, so that one of the two
// always sees the other. The lock is held.
func (e *Event) enlist(w *waiter) {
	w.at = len(e.waiting)
	e.waiting = append(e.waiting, w)
	e.sleepers.Store(int64(len(e.waiting)))
	if v := e.load(); w.holds(v) {
		e.rouse(w, v)
		return
	}
	if e.polls {
		e.youngest = time.Now()
		e.pollIn(MinPollInterval)
	}
}

// rouse ends a waiter's sleep. The lock is held.
func (e *Event) rouse(w *waiter, v uint64) {
	e.strike(w)
	w.seen = v
	if w.task != nil {
		w.task.ripe()
		return
	}
	w.bell <- struct{}{} // has room for one
}

// strike takes a waiter off the list. The lock is held.
func (e *Event) strike(w *waiter) {
	last := len(e.waiting) - 1
	moved := e.waiting[last]
	e.waiting[w.at], moved.at = moved, w.at
	e.waiting[last] = nil
	e.waiting = e.waiting[:last]
	w.at = -1
	e.sleepers.Store(int64(last))
	if last == 0 && e.polling {
		e.polling = false
		e.timer.Stop()
	}
}

// withdraw takes a waiter off the list, and reports false if it was roused before.
func (e *Event) withdraw(w *waiter) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.at < 0 {
		return false
	}
	e.strike(w)
	return true
}

// wake rouses those whose condition holds. It comes after a change of the value.
func (e *Event) wake() {
	if e.sleepers.Load() > 0 {
		e.rouseAll()
	}
}

func (e *Event) rouseAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.load()
	for i := len(e.waiting) - 1; i >= 0; i-- {
		if w := e.waiting[i]; w.holds(v) {
			e.rouse(w, v)
		}
	}
}

// changed is called by the device after a peer has changed the value.
func (e *Event) changed() {
	// Also orders the device's plain stores before the look at the sleepers.
	if e.enter(oneCall) {
		e.wake()
		e.leave(oneCall)
	}
}

// poll looks after those who sleep where nobody tells of a change.
func (e *Event) poll() {
	if !e.enter(oneCall) {
		return
	}
	defer e.leave(oneCall)
	e.rouseAll()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.polling = false; len(e.waiting) > 0 {
		slept := time.Since(e.youngest)
		e.pollIn(min(max(slept/8, MinPollInterval), e.interval))
	}
}

// pollIn has poll called after a time at the latest. The lock is held.
func (e *Event) pollIn(d time.Duration) {
	if due := time.Now().Add(d); !e.polling || due.Before(e.due) {
		e.polling, e.due = true, due
		e.timer.Reset(d)
	}
}
