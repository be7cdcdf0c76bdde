package backend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Alarms is a context whose tasks complete after a time.
type Alarms struct {
	*pe.Core
	control backend.Control
	tasks   *pe.Pool[AlarmTask]
	pending map[*AlarmTask]*time.Timer

	mu    sync.Mutex
	rings []ring // completed, not reported yet
}

type ring struct {
	task *AlarmTask
	err  error
}

// AlarmTask completes After a time.
type AlarmTask struct {
	pe.Task
	After  time.Duration
	alarms *Alarms
}

// ErrCancelled is the error of tasks that were in flight when the context stopped.
var ErrCancelled = errors.New("alarm cancelled")

// NewAlarms makes the context with a pool of n tasks. The engine runs done for
// each task that completes.
func NewAlarms(n int, done func(*AlarmTask, error)) (*Alarms, error) {
	a := &Alarms{pending: map[*AlarmTask]*time.Timer{}}
	a.Core, a.control = backend.New("alarms", &alarmsBackend{a, done})
	var err error
	a.tasks, err = backend.NewPool(a.control, "alarm tasks", n,
		func(t *AlarmTask) *pe.Task { return &t.Task },
		func(t *AlarmTask) { t.alarms = a }, nil)
	return a, err
}

// Alloc takes a task from the pool.
func (a *Alarms) Alloc(after time.Duration) (*AlarmTask, error) {
	t, err := a.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	t.After = after
	return t, nil
}

// Submit starts the task.
func (t *AlarmTask) Submit(...pe.SubmitFlags) error {
	if err := t.alarms.control.Begin(&t.Task, "submit an alarm"); err != nil {
		return err
	}
	t.alarms.pending[t] = time.AfterFunc(t.After, func() { t.alarms.ring(t, nil) })
	return nil
}

// Free puts the task back into its pool.
func (t *AlarmTask) Free() error { return t.alarms.tasks.Free(t) }

// ring hands a completed task to the engine, from any goroutine.
func (a *Alarms) ring(t *AlarmTask, err error) {
	a.mu.Lock()
	a.rings = append(a.rings, ring{t, err})
	a.mu.Unlock()
	a.control.Wake()
}

// alarmsBackend is what the engine sees.
type alarmsBackend struct {
	alarms *Alarms
	done   func(*AlarmTask, error)
}

// Start has nothing to acquire.
func (b *alarmsBackend) Start() (bool, error) { return true, nil }

// Progress takes what has completed so far, so that it ends.
func (b *alarmsBackend) Progress() int {
	a := b.alarms
	a.mu.Lock()
	rings := a.rings
	a.rings = nil
	a.mu.Unlock()
	for _, r := range rings {
		delete(a.pending, r.task)
		a.control.End(&r.task.Task)
		b.done(r.task, r.err)
	}
	if a.State() == pe.Stopping && a.InFlight() == 0 {
		a.control.Stopped()
	}
	return len(rings)
}

// Arm has nothing to arrange: ring always wakes the engine.
func (b *alarmsBackend) Arm() bool {
	b.alarms.mu.Lock()
	defer b.alarms.mu.Unlock()
	return len(b.alarms.rings) == 0
}

// Stop cancels the alarms; those that have gone off already report themselves.
func (b *alarmsBackend) Stop() {
	a := b.alarms
	for t, timer := range a.pending {
		if timer.Stop() {
			a.ring(t, ErrCancelled)
		}
	}
	if a.InFlight() == 0 {
		a.control.Stopped()
	}
}

// Idle has nothing to release.
func (b *alarmsBackend) Idle() {}

// A context of one's own: timers, whose callbacks the engine runs together with
// those of all other contexts. Alarms is the type that users see; alarmsBackend
// does the work.
func ExampleBackend() {
	engine := pe.New(pe.Config{})
	alarms, err := NewAlarms(2, func(t *AlarmTask, err error) {
		fmt.Println("alarm after", t.After, "error:", err)
		_ = t.Free()
		_ = t.alarms.Stop() // cancels the other one
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := engine.Connect(alarms); err != nil {
		fmt.Println(err)
		return
	}
	alarms.OnStateChange(func(_, next pe.State) {
		fmt.Println(next)
		if next != pe.Running {
			return
		}
		for _, after := range []time.Duration{time.Hour, time.Millisecond} {
			t, err := alarms.Alloc(after)
			if err != nil {
				fmt.Println(err)
				return
			}
			if err := t.Submit(); err != nil {
				fmt.Println(err)
			}
		}
	})
	if err := alarms.Start(); err != nil {
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
	// alarm after 1ms error: <nil>
	// Stopping
	// alarm after 1h0m0s error: alarm cancelled
	// Idle
}
