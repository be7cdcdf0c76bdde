package syncevent

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
)

const (
	// spinTime is how long a wait polls the value before it sleeps.
	spinTime = 50 * time.Microsecond
	// maxSpins bounds spinning where the clock stands still, as in testing/synctest.
	maxSpins = 2000
)

// waiter sleeps until a condition holds: a goroutine or a task.
type waiter struct {
	event *Event
	Condition
	index  int           // index in Event.waiting; -1: not there
	seen   uint64        // the value that fulfilled the condition
	wakeup chan struct{} // receives one value when the condition holds; nil: task is reported
	task   *Task
}

// Wait waits until the condition holds for the event's value, and returns the value. It spins
// for about 50 µs and then sleeps without using the processor; the package comment says what
// wakes it, and when. It may miss a value that another change replaces soon after. Any
// goroutine may call it. A callback of an engine should use a task (Pool.Wait) instead, since
// Wait blocks.
//
//	v, err := event.Wait(ctx, syncevent.Greater(15))
//
// A condition that no value fulfils is an error that matches ErrInvalid: a value with bits
// outside the mask, one that cannot be exceeded under it, a mask of zero. When ctx ends, the
// error is context.Cause(ctx). Otherwise it fails like Get.
func (e *Event) Wait(ctx context.Context, c Condition) (uint64, error) {
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
		return 0, e.interrupted(ctx, c)
	}
	if v, ok := e.spin(c); ok {
		return v, nil
	}
	return e.sleep(ctx, c)
}

// sleep waits after spinning, until the condition holds or ctx ends.
func (e *Event) sleep(ctx context.Context, c Condition) (uint64, error) {
	w := e.startWaiter(c)
	if _, woken := host.Await(ctx, e.host.Scheduler(), w, w.wakeup); !woken {
		if e.cancelWaiter(w) {
			e.reuseWaiter(w)
			return 0, e.interrupted(ctx, c)
		}
		<-w.wakeup // wakeWaiter came first
	}
	v := w.seen
	e.reuseWaiter(w)
	return v, nil
}

// String names a wait in the report of a simulation.
func (w *waiter) String() string { return fmt.Sprintf("a wait for %v %v", w.event, w.Condition) }

func (e *Event) interrupted(ctx context.Context, c Condition) error {
	return fmt.Errorf("wait for %v %v: %w; its value is %#x", e, c, context.Cause(ctx), e.load())
}

// spin polls the value for spinTime. In a simulation it does so once, since time stands still.
func (e *Event) spin(c Condition) (uint64, bool) {
	v := e.load()
	if c.holds(v) {
		return v, true
	}
	if e.host.Scheduler() != nil {
		return 0, false
	}
	start := e.host.Now()
	for n := 0; n < maxSpins && e.host.Now().Sub(start) < spinTime; n++ {
		// The goroutine that changes the value may need this processor.
		runtime.Gosched()
		if v = e.load(); c.holds(v) {
			return v, true
		}
	}
	return 0, false
}

// startWaiter adds a waiter for a goroutine.
func (e *Event) startWaiter(c Condition) *waiter {
	e.mu.Lock()
	defer e.mu.Unlock()
	var w *waiter
	if last := len(e.freeWaiters) - 1; last >= 0 {
		w, e.freeWaiters = e.freeWaiters[last], e.freeWaiters[:last]
	} else {
		w = &waiter{event: e, wakeup: make(chan struct{}, 1)}
	}
	w.Condition = c
	e.addWaiter(w)
	return w
}

func (e *Event) reuseWaiter(w *waiter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.freeWaiters = append(e.freeWaiters, w)
}

// addWaiter adds a waiter to the list, and then checks the value again. A writer first changes
// the value and then checks for waiters, so at least one of the two sees the other. The lock
// is held.
func (e *Event) addWaiter(w *waiter) {
	w.index = len(e.waiting)
	e.waiting = append(e.waiting, w)
	e.sleepers.Store(int64(len(e.waiting)))
	if v := e.load(); w.holds(v) {
		e.wakeWaiter(w, v)
		return
	}
	if e.needsPolling {
		e.lastSleep = e.host.Now()
		e.schedulePoll(minPollInterval)
	}
}

// wakeWaiter removes a waiter from the list and wakes it. The lock is held.
func (e *Event) wakeWaiter(w *waiter, v uint64) {
	e.removeWaiter(w)
	w.seen = v
	if w.task != nil {
		w.task.conditionMet()
		return
	}
	if s := e.host.Scheduler(); s != nil {
		s.Wake(w.signal)
		return
	}
	w.signal()
}

func (w *waiter) signal() { w.wakeup <- struct{}{} } // buffered

// removeWaiter removes a waiter from the list. The lock is held.
func (e *Event) removeWaiter(w *waiter) {
	last := len(e.waiting) - 1
	moved := e.waiting[last]
	e.waiting[w.index], moved.index = moved, w.index
	e.waiting[last] = nil
	e.waiting = e.waiting[:last]
	w.index = -1
	e.sleepers.Store(int64(last))
	if last == 0 && e.pollScheduled {
		e.pollScheduled = false
		e.timer.Stop()
	}
}

// cancelWaiter removes a waiter from the list. It returns false if the waiter was woken
// before.
func (e *Event) cancelWaiter(w *waiter) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.index < 0 {
		return false
	}
	e.removeWaiter(w)
	return true
}

// wake wakes the waiters whose condition holds. It is called after each change of
// the value.
func (e *Event) wake() {
	if e.sleepers.Load() > 0 {
		e.wakeSatisfied()
	}
}

func (e *Event) wakeSatisfied() {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.load()
	for i := len(e.waiting) - 1; i >= 0; i-- {
		if w := e.waiting[i]; w.holds(v) {
			e.wakeWaiter(w, v)
		}
	}
}

// changed is called by the device after a peer changed the value.
func (e *Event) changed() {
	// The atomic operation in enter also orders the device's plain stores before
	// the load of sleepers.
	if e.enter(oneCall) {
		e.wake()
		e.leave(oneCall)
	}
}

// poll checks the value for changes that are not reported. It runs on the timer's goroutine.
func (e *Event) poll() {
	if !e.enter(oneCall) {
		return
	}
	defer e.leave(oneCall)
	e.wakeSatisfied()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pollScheduled = false; len(e.waiting) > 0 {
		slept := e.host.Now().Sub(e.lastSleep)
		e.schedulePoll(min(max(slept/8, minPollInterval), e.interval))
	}
}

// schedulePoll makes sure that poll is called within d. The lock is held.
func (e *Event) schedulePoll(d time.Duration) {
	if due := e.host.Now().Add(d); !e.pollScheduled || due.Before(e.pollDue) {
		e.pollScheduled, e.pollDue = true, due
		e.timer.Reset(d)
	}
}
