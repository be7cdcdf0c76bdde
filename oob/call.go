package oob

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// asyncCall is a wait outside the engine, on behalf of a context. It ends once, on the engine's
// goroutine: when its function has returned, or earlier, when the context stops. It belongs
// to that goroutine.
type asyncCall struct {
	engine  *pe.Engine
	r       rdma.Context
	ended   bool
	unwatch func()
	cancel  context.CancelCauseFunc
}

// newCall makes a call; stopped is called if the context stops before it has ended.
func newCall(engine *pe.Engine, r rdma.Context, stopped func(err error)) *asyncCall {
	c := &asyncCall{engine: engine, r: r}
	c.unwatch = r.Watch(func(_, next pe.State) {
		if next == pe.Stopping || next == pe.Idle {
			stopped(c.flushed())
		}
	})
	return c
}

// stopped reports whether the context has stopped, or is about to.
func (c *asyncCall) stopped() bool { return stopping(c.r) }

func stopping(r rdma.Context) bool {
	s := r.State()
	return s == pe.Stopping || s == pe.Idle
}

func (c *asyncCall) flushed() error {
	return fmt.Errorf("%w: context %q has stopped", ErrFlushed, c.r.Name())
}

// end ends the call. It reports false if the call had ended before.
func (c *asyncCall) end() bool {
	if c.ended {
		return false
	}
	c.ended = true
	c.unwatch()
	if c.cancel != nil {
		c.cancel(ErrFlushed)
	}
	return true
}

// onEngine runs f on the engine's goroutine. That fails only once the engine is closed; the
// context has stopped by then.
func (c *asyncCall) onEngine(f func()) { _ = c.engine.Do(f) }

// runAsync runs f on a goroutine of its own, and then calls finish on the engine's goroutine
// with f's result, or with ErrClosed if the Peer is already closed. The context of f ends with
// ctx, with the Peer, and with the call.
func (c *asyncCall) runAsync(p *Peer, ctx context.Context, f func(ctx context.Context) error, finish func(err error)) {
	ctx, c.cancel = context.WithCancelCause(ctx)
	cancel := c.cancel
	deliver := func(err error) {
		c.onEngine(func() {
			if errors.Is(err, ErrClosed) && c.stopped() {
				err = c.flushed() // the context stopped first, and that is no failure
			}
			finish(err)
		})
	}
	h := host.Of(c.r.Device())
	started := p.goAsync(h, func() {
		stop := context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })
		defer stop()
		defer cancel(nil)
		var err error
		host.Outside(h.Scheduler(), p, func() { err = f(ctx) }) // the program may have ended ctx, and go on
		deliver(err)
	})
	if !started {
		cancel(nil)
		deliver(errPeerClosed)
	}
}

// errPeerClosed ends the waits of a Peer that is closed.
var errPeerClosed = fmt.Errorf("the peer is %w", ErrClosed)

// goAsync runs f on a goroutine that Close waits for. Once the Peer is closed, it does
// nothing and returns false.
func (p *Peer) goAsync(h host.Host, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	host.Go(h, &p.goroutines, f)
	return true
}
