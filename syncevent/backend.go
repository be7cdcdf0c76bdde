package syncevent

import "github.com/verbena-rdma/verbena/pe"

// progressBudget bounds the tasks that one Progress handles.
const progressBudget = 128

// asBackend implements backend.Backend for a Context.
type asBackend struct{ c *Context }

// Start implements backend.Backend.
func (b asBackend) Start() (bool, error) {
	b.c.stopping = false
	return true, nil
}

// Progress implements backend.Backend.
func (b asBackend) Progress() int {
	c := b.c
	n := 0
	for ; n < progressBudget/2; n++ {
		e := c.submitted.Pop()
		if e == nil {
			break
		}
		e.Value.finish(c.stopping)
	}
	for ; n < progressBudget; n++ {
		t := c.nextReady()
		if t == nil {
			break
		}
		t.finish(t.flushed)
	}
	c.reportStopped()
	return n
}

func (c *Context) nextReady() *Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.ready.Pop(); e != nil {
		return e.Value
	}
	return nil
}

// Arm implements backend.Backend. A wait that ends wakes the engine itself.
func (b asBackend) Arm() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.c.submitted.Len() == 0 && b.c.ready.Len() == 0
}

// Stop implements backend.Backend.
func (b asBackend) Stop() {
	c := b.c
	c.stopping = true
	for _, t := range c.tasks {
		if t.op == OpWait && t.InFlight() && t.ev.cancelWaiter(&t.waiter) {
			t.flushed = true
			t.conditionMet()
		}
	}
	c.reportStopped()
}

// reportStopped calls Control.Stopped when a context that is stopping has nothing in flight.
func (c *Context) reportStopped() {
	if c.stopping && c.State() == pe.Stopping && c.InFlight() == 0 {
		c.control.Stopped()
	}
}

// Idle implements backend.Backend.
func (b asBackend) Idle() {}
