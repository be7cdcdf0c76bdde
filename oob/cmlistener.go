package oob

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmListener is a Listener by connection manager. All but addr and close belongs to the
// engine's goroutine.
type cmListener struct {
	l         *Listener
	way       *cm
	r         *rdma.Connections
	offer     Offer
	f         func(client string, a *Answer) error
	reception reception
	unwatch   func()

	mu      sync.Mutex
	listens string // the address, once it listens
	resolve context.CancelFunc
}

func newCMListener(cfg Config, way *cm) *Listener {
	l := &Listener{cfg: cfg}
	l.cm = &cmListener{l: l, way: way}
	return l
}

func (c *cmListener) addr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listens != "" {
		return c.listens
	}
	return c.way.address
}

// serve begins to listen when the context does more than nothing. The Listener's lock is
// held.
func (c *cmListener) serve(r *rdma.Connections, offer Offer, f func(client string, a *Answer) error) error {
	if t := r.Config().Transport; t != verbs.RC {
		return fmt.Errorf("oob: serve on %v: %w: the connection manager makes connections, and the context has the transport service %v; listen by TCP", c.l.Addr(), ErrInvalid, t)
	}
	c.r, c.offer, c.f = r, offer, f
	return r.Engine().Do(func() {
		if c.l.isClosed() {
			return
		}
		c.unwatch = r.Watch(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				c.begin()
			case pe.Stopping:
				c.reception.forget()
			}
		})
		if s := r.State(); s == pe.Starting || s == pe.Running {
			c.begin()
		}
	})
}

// begin listens, when the address is known.
func (c *cmListener) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	release := c.r.HoldStarting() // who sees the context Running can dial
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.closed {
		cancel()
		release()
		return
	}
	c.resolve = cancel
	engine := c.r.Engine()
	c.l.beside.Go(func() {
		defer cancel()
		address, err := listenAddress(ctx, c.r, c.way.address)
		_ = engine.Do(func() {
			defer release()
			if c.l.isClosed() || stopping(c.r) {
				return
			}
			c.reception = reception{host: c, r: c.r, connections: c.offer.connections()}
			if err == nil {
				err = c.reception.open(address)
			}
			if err != nil {
				c.r.Fail(fmt.Errorf("oob: listen on %v: %w", c.way, err))
				return
			}
			c.mu.Lock()
			c.listens = c.reception.addr().String()
			c.mu.Unlock()
		})
	})
}

// close listens no more. While the engine runs elsewhere, that takes effect there.
func (c *cmListener) close() error {
	c.l.mu.Lock()
	resolve := c.resolve
	c.l.mu.Unlock()
	if resolve != nil {
		resolve()
	}
	if c.r == nil {
		return nil
	}
	_ = c.r.Engine().Do(func() { // where nothing runs any more, the context has ended it
		if c.unwatch != nil {
			c.unwatch()
		}
		c.reception.close()
	})
	return nil
}

// peerFor implements host.
func (c *cmListener) peerFor(name string) *Peer {
	cfg := c.l.cfg
	if cfg.Peer == "" {
		cfg.Peer = name
	}
	return &Peer{cfg: cfg, ends: Ends{Name: cfg.Name, Peer: cfg.Peer, Role: Responder}, way: c.way}
}

// noRoom implements host.
func (c *cmListener) noRoom(err error) { c.l.noRoom(err) }

// rejected implements host.
func (c *cmListener) rejected(from netip.AddrPort, err error) {
	c.l.cfg.Log.Warn().Err(err).Msgf("a connection from %v was rejected", from)
}

// admit implements host.
func (c *cmListener) admit(g *guest, theirs []byte) {
	l := c.l
	if l.isClosed() {
		g.leave()
		return
	}
	name, err := bundleFrom(theirs)
	x := newExchange(c.peerFor(name), c.r)
	var a *Answer
	if err == nil {
		a, err = x.acceptMade(theirs, g.conns)
	}
	if err != nil {
		g.turnAway(greeting.Refused, err, nil)
		return
	}
	defer func() {
		if g.state == guestWaits { // f has panicked
			closeImports(a.Maps, a.Events)
			g.leave()
		}
	}()
	var ours []byte
	b, err := x.bundle(c.offer)
	if err == nil {
		ours, err = b.Encode()
	}
	if err == nil {
		l.waiting = false
		if err = c.f(name, a); err == nil && !g.intact() {
			err = errors.New("its connections were closed")
		}
	}
	if err != nil {
		closeImports(a.Maps, a.Events)
		g.turnAway(greeting.Refused, err, nil)
		return
	}
	client := fmt.Sprintf("%s from %v", name, g.from)
	admitted := true
	x.follow(a, l.changed(client, &admitted), nil)
	l.cfg.Log.Info().Msg("client " + client)
	if !g.reply(ours) {
		for _, conn := range g.conns {
			_ = conn.Close()
		}
	}
}
