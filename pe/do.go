package pe

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// calls holds the functions given to Do.
type calls struct {
	mu    sync.Mutex
	in    []func()
	count atomic.Int64       // functions not begun; the engine reads it without the lock
	batch fifo.Queue[func()] // taken from in, on the engine's goroutine only
}

func (c *calls) pending() bool { return c.count.Load() > 0 }

// close refuses functions from now on.
func (c *calls) close(closing *atomic.Bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	closing.Store(true)
}

// Do queues f to run on the goroutine that drives the engine, inside Progress, Run or Close:
// once, in the order of the calls. It does not wait for f. It may be called from any
// goroutine, and wakes an engine that sleeps in Run or an armed notification descriptor. While
// nobody drives the engine, f waits, also after Run has returned (see Done). After Close, Do
// fails with ErrClosed, and f does not run.
func (e *Engine) Do(f func()) error {
	if f == nil {
		return fmt.Errorf("pe: cannot call Do: the function is nil: %w", ErrInvalid)
	}
	c := &e.calls
	c.mu.Lock()
	if e.closing.Load() {
		c.mu.Unlock()
		return fmt.Errorf("pe: cannot call Do: the engine is closed: %w", ErrClosed)
	}
	c.in = append(c.in, f)
	c.count.Add(1)
	c.mu.Unlock()
	e.wake()
	return nil
}

// runCalls runs the functions given to Do so far, and reports the state changes that each of
// them causes.
func (e *Engine) runCalls() int {
	c := &e.calls
	if !c.pending() {
		return 0
	}
	c.mu.Lock()
	for i, f := range c.in {
		c.batch.Push(f)
		c.in[i] = nil
	}
	c.in = c.in[:0]
	c.mu.Unlock()
	n, events := c.batch.Len(), 0
	for range n {
		f := c.batch.Pop()
		c.count.Add(-1)
		e.call(functionRegion, f)
		e.yield()
		events += e.deliver()
	}
	return n + events
}
