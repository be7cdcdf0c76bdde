package oob

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// cmListener is a Listener by connection manager. All methods but addr, serve and close belong
// to the engine's goroutine.
type cmListener struct {
	admission
	l       *Listener
	way     *cm
	unwatch func()

	mu      sync.Mutex
	listens string // the address, once it listens
}

func (c *cmListener) addr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listens != "" {
		return c.listens
	}
	return c.way.address
}

// serve starts listening when the context is Starting or Running. The Listener's lock is held.
func (c *cmListener) serve(r *rdma.Connections, offer Offer, f func(client string, a *Answer) error) error {
	err := checkOffer(len(offer.Maps), len(offer.Events), offer.connections())
	if r == nil {
		err = errNoConnections
	}
	if err != nil {
		return fmt.Errorf("oob: serve on %v: %w", c.way, err)
	}
	l := c.l
	c.admission = admission{
		r: r, connections: offer.connections(), mustWait: l.logMustWait,
		exchange: func(client string) *exchange { return newExchange(l.peer(client), r) },
		reply: func(x *exchange) ([]byte, error) {
			b, err := x.bundle(offer)
			if err != nil {
				return nil, err
			}
			return (&privateData{kind: cmReply, offer: *b}).encodeWithinLimit()
		},
		admit: func(e *cmExchange) error {
			l.waitLogged = false
			if err := f(e.offer.From, e.answer); err != nil {
				return err
			}
			if slices.ContainsFunc(e.conns, func(conn *rdma.Connection) bool { return conn.State() != rdma.Exported }) {
				return errors.New("the connections were closed")
			}
			return nil
		},
		accepted: func(x *exchange, e *cmExchange) { l.admitted(x, e.answer, e.offer.From, e.from()) },
		rejected: func(from netip.AddrPort, err error) { l.rejected(from, err) },
	}
	return r.Engine().Do(func() {
		if l.isClosed() {
			return
		}
		c.unwatch = r.Watch(func(_, next pe.State) {
			if next == pe.Starting {
				c.begin()
			}
		})
		if s := r.State(); s == pe.Starting || s == pe.Running {
			c.begin()
		}
	})
}

// begin starts listening. If that fails, the context fails.
func (c *cmListener) begin() {
	if err := c.open(c.way, c.l.cfg.Await); err != nil {
		c.r.Fail(fmt.Errorf("oob: listen on %v: %w", c.way, err))
		return
	}
	addr := c.listener.Addr()
	if addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(c.r.GID().GID.Addr(), addr.Port())
	}
	c.mu.Lock()
	c.listens = addr.String()
	c.mu.Unlock()
}

// close stops listening. While the engine runs on another goroutine, the stop takes effect
// there, after close has returned.
func (c *cmListener) close() error {
	if c.r == nil {
		return nil
	}
	engine := c.r.Engine()
	if engine == nil { // the context is closed, which ended the listener
		return nil
	}
	_ = engine.Do(func() { // fails once the engine is closed; the context then ended the listener
		if c.unwatch != nil {
			c.unwatch()
		}
		if c.listener != nil {
			_ = c.listener.Close() // on the engine's goroutine it does not fail
		}
	})
	return nil
}
