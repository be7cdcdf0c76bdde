package syncevent

import "github.com/verbena-rdma/verbena/pe"

// progressBudget bounds the tasks that one Progress handles.
const progressBudget = 128

// backend implements pe.Backend for a Context.
type backend struct{ c *Context }

// Start implements pe.Backend.
func (b backend) Start() (bool, error) {
	b.c.stopping = false
	return true, nil
}

// Progress implements pe.Backend.
func (b backend) Progress() int {
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

// Arm implements pe.Backend. A wait that ends wakes the engine itself.
func (b backend) Arm() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.c.submitted.Len() == 0 && b.c.ready.Len() == 0
}

// Stop implements pe.Backend.
func (b backend) Stop() {
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

// Idle implements pe.Backend.
func (b backend) Idle() {}
