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
	answerer
	l       *Listener
	way     *cm
	offer   Offer
	f       func(client string, a *Answer) error
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
	c.offer, c.f = offer, f
	c.answerer = answerer{
		r: r, connections: offer.connections(), admit: c.admitClient, mustWait: c.l.logMustWait,
		ends:    func(client string) Ends { return c.l.peer(client, c.way).ends },
		outcome: func(*privateData) bool { return true }, // a server ignores reports
		rejected: func(from netip.AddrPort, err error) {
			c.l.cfg.Log.Warn().Err(err).Msgf("a connection from %v was rejected", from)
		},
	}
	return r.Engine().Do(func() {
		if c.l.isClosed() {
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

// admitClient makes the connections with a client, or rejects it.
func (c *cmListener) admitClient(r *requests) {
	l, name := c.l, r.offer.From
	x := newExchange(l.peer(name, c.way), c.r)
	a, err := x.importOffer(r.offer, 0)
	if err != nil {
		c.rejectForError(r, err)
		return
	}
	admitted := false
	defer func() {
		if !admitted { // also if f panicked
			closeImports(a.Maps, a.Events)
			r.reject(rejection(cmBusy, errBusy))
		}
	}()
	var reply []byte
	b, err := x.bundle(c.offer)
	if err == nil {
		reply, err = (&privateData{kind: cmReply, offer: *b}).encodeWithinLimit()
	}
	if err == nil {
		err = c.prepare(r)
	}
	if err != nil {
		c.rejectForError(r, err)
		return
	}
	l.waitLogged = false
	a.Connections, x.conns = slices.Clone(r.conns), r.conns
	if err := c.f(name, a); err != nil {
		c.rejectForGood(r, err)
		return
	}
	if slices.ContainsFunc(r.conns, func(conn *rdma.Connection) bool { return conn.State() != rdma.Exported }) {
		c.rejectForGood(r, errors.New("the connections were closed"))
		return
	}
	client := fmt.Sprintf("%s from %v", name, r.from())
	if c.accept(r, rdma.AcceptConfig{PrivateData: reply}) != nil {
		return
	}
	admitted = true
	x.watchUntilClosed(a, l.connectionWatcher(client, &admitted), nil)
	l.cfg.Log.Info().Msgf("client %s connected", client)
}
