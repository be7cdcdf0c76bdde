package oob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// outcomeTimeout is how long a peer may take, after it has closed its connection, to report
// whether it succeeded.
const outcomeTimeout = 5 * time.Second

// Done waits for the report of the peer, a requester. A responder whose memory is only written
// or read does not notice otherwise that the requester has ended. f is called later, once, on
// the engine's goroutine: with nil if the peer succeeded, otherwise with ErrPeerFailed, with
// the error of the Way, with ErrFlushed if the context of the exchange stops first, or with
// ErrClosed if the Peer is closed. Done is legal for a Responder whose exchange has succeeded
// (otherwise ErrInvalid, and f is called at once), and only one Done may wait at a time
// (ErrInUse).
//
// Done(nil) ends the context of the exchange with the peer: the context is stopped if the peer
// succeeded, and fails with the error otherwise. Calling Done(nil) again does nothing, so a
// callback for messages may call it every time. If there is no context to fail, such as before
// the exchange, the error goes to Config.Notify, or to standard error.
//
// A peer that is killed sends no report. In that case EndWith ends the context, or the
// keepalive of the connection together with rdma.Config.EndWithLastConnection.
func (p *Peer) Done(f func(err error)) {
	p.mu.Lock()
	r, exchanging := p.exchanged, p.exchanging
	p.mu.Unlock()
	endsContext := f == nil
	if endsContext {
		f = func(err error) {
			if err == nil {
				_ = exchanging.Stop() // on the engine's goroutine it does not fail
				return
			}
			if exchanging == nil {
				p.note(err.Error())
			}
			fail(exchanging, err)
		}
	}
	if !isContext(r) || p.cfg.Role != Responder || r.Engine() == nil {
		f(fmt.Errorf("oob: wait for the end of %s: %w: only a responder can wait, after a successful exchange", p.cfg.Peer, ErrInvalid))
		return
	}
	wrap := func(err error) error {
		return fmt.Errorf("oob: wait for the end of %s through %v: %w", p.cfg.Peer, p.way, err)
	}
	if p.doneCalled && p.endsContext && endsContext {
		return
	}
	if p.doneCalled {
		_ = r.Engine().Do(func() { f(wrap(fmt.Errorf("%w: another Done is waiting", ErrInUse))) })
		return
	}
	p.doneCalled, p.endsContext = true, endsContext
	var c *asyncCall
	finish := func(err error) {
		if !c.end() {
			return
		}
		p.doneCalled = false
		p.reported = p.reported || err == nil || errors.Is(err, ErrPeerFailed)
		if err == nil {
			p.waitEnded("")
		} else {
			err = wrap(err)
		}
		f(err)
	}
	c = newCall(r.Engine(), r, finish)
	if c.stopped() {
		c.onEngine(func() { finish(c.flushed()) })
		return
	}
	p.waitFor(fmt.Sprintf("%s to report its end through %v", p.cfg.Peer, p.way))
	if w := p.way.cm; w != nil {
		c.runAsync(p, context.Background(), untilDone, finish)
		w.done = finish
		c.onEngine(w.reported)
		return
	}
	c.runAsync(p, context.Background(), func(ctx context.Context) error {
		p.doneMu.Lock() // an abandoned Done may not have returned yet
		defer p.doneMu.Unlock()
		return p.way.carrier.Done(ctx)
	}, finish)
}

// EndWith ends a context with its peer: the context fails when a connection of the exchange
// fails, or when the peer has closed one and Done gets no report within 5 s. EndWith is for
// responders, whose contexts otherwise keep running without connections. Call it before the
// exchange, once. It is in effect until the context is Idle after the exchange, or the Peer is
// closed.
func (p *Peer) EndWith(r rdma.Context) {
	if !isContext(r) {
		return
	}
	run, cancel := context.WithCancel(p.ctx) // ends when EndWith is no longer in effect
	var unwatch, unwatchConnections func()
	end := func() {
		cancel()
		unwatch()
		unwatchConnections()
	}
	timed := false
	unwatchConnections = watchConnections(r, func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case p.ctx.Err() != nil:
			end()
		case !p.madeConnection(conn):
		case state == rdma.Failed:
			r.Fail(err)
		case errors.Is(err, rdma.ErrPeerClosed) && !timed:
			timed = true
			p.failUnlessReported(run, r, err)
		}
	})
	unwatch = r.Watch(func(_, next pe.State) {
		if next == pe.Idle && p.begun() {
			end()
		}
	})
}

// failUnlessReported fails a context after outcomeTimeout, unless the peer reports or run ends
// first.
func (p *Peer) failUnlessReported(run context.Context, r rdma.Context, err error) {
	engine, h := r.Engine(), host.Of(r.Device())
	p.goAsync(h, func() {
		over, cancel := host.WithTimeout(run, h, p.outcomeTimeout)
		defer cancel()
		if <-over.Done(); run.Err() != nil {
			return
		}
		_ = engine.Do(func() { // fails only once the engine is closed
			s := r.State()
			if run.Err() == nil && !p.reported && (s == pe.Starting || s == pe.Running) {
				r.Fail(fmt.Errorf("oob: %s did not report whether it succeeded: %w", p.cfg.Peer, err))
			}
		})
	})
}
