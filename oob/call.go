package oob

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// call is something that is waited for beside the engine, on behalf of a context. What
// is done at its end is done once, on the engine's goroutine: when it has come, or when
// the context stops before. It belongs to that goroutine.
type call struct {
	engine  *pe.Engine
	ended   bool
	unwatch func()
	cancel  context.CancelCauseFunc
}

// newCall makes a call; stopped is called if the context stops before it has ended.
func newCall(engine *pe.Engine, r *rdma.Context, stopped func(err error)) *call {
	c := &call{engine: engine}
	c.unwatch = r.Watch(func(_, next pe.State) {
		if next == pe.Stopping || next == pe.Idle {
			stopped(fmt.Errorf("%w: the context %q has stopped", ErrFlushed, r.Name()))
		}
	})
	return c
}

// end reports whether the call ends now, and had not before.
func (c *call) end() bool {
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

// later has f run on the engine's goroutine. It fails only once the engine is closed,
// and then the context has stopped before.
func (c *call) later(f func()) { _ = c.engine.Do(f) }

// beside runs f on a goroutine of its own, and what it returns on the engine's. The
// context of f ends with ctx, with the Peer, and with the call.
func (c *call) beside(p *Peer, ctx context.Context, f func(ctx context.Context) func()) {
	ctx, c.cancel = context.WithCancelCause(ctx)
	cancel := c.cancel
	// Once the Peer is closed, the call ends with the context.
	started := p.goBeside(func() {
		stop := context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })
		defer stop()
		defer cancel(nil)
		c.later(f(ctx))
	})
	if !started {
		cancel(nil)
	}
}

// goBeside runs f on a goroutine that Close waits for. It returns false, and does
// nothing, once the Peer is closed.
func (p *Peer) goBeside(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.beside.Go(f)
	return true
}
