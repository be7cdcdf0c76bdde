package oob

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// exchange is one exchange under way. It belongs to the engine's goroutine.
type exchange struct {
	peer        *Peer
	r           rdma.Context
	connections *rdma.Connections // the context, or nil
	datagrams   *rdma.Datagrams   // likewise
	call        *asyncCall
	conns       []*rdma.Connection
	callback    func(*Answer, error)
	// onEnd, unless it is nil, is called when the exchange ends, and returns the exchange's error.
	onEnd func(err error) error
}

func newExchange(p *Peer, r rdma.Context) *exchange {
	x := &exchange{peer: p, r: r}
	x.connections, _ = r.(*rdma.Connections)
	x.datagrams, _ = r.(*rdma.Datagrams)
	return x
}

// start starts an exchange through the Carrier.
func (w Way) start(ctx context.Context, x *exchange, offer Offer) error {
	ours, err := x.export(offer)
	if err != nil {
		return err
	}
	p := x.peer
	p.waitFor(fmt.Sprintf("the descriptors of %s, through %v", p.cfg.Peer, w))
	var theirs []byte
	x.call.runAsync(p, ctx, func(ctx context.Context) (err error) {
		theirs, err = w.carrier.Exchange(ctx, p.ends, ours)
		return err
	}, func(err error) {
		var a *Answer
		if err == nil && !x.call.ended {
			a, err = x.accept(theirs)
		}
		x.end(a, err)
	})
	return nil
}

// export creates the connections, and returns the bundle of the offer with their descriptors.
func (x *exchange) export(offer Offer) ([]byte, error) {
	b, err := x.bundle(offer)
	if err != nil {
		return nil, err
	}
	if x.datagrams != nil {
		desc, err := x.datagrams.ExportEndpoint()
		if err != nil {
			return nil, err
		}
		b.Endpoints = [][]byte{desc}
		return b.Encode()
	}
	// Check first that all connections fit: the program gets reports of connections that are
	// made and closed again.
	n := offer.connections()
	if have, most := len(x.connections.List()), x.connections.Config().MaxConnections; n > 1 && have+n > most {
		return nil, fmt.Errorf("export %d connections of context %q: %w: %d of %d are in use; close some, or raise Config.MaxConnections",
			n, x.r.Name(), rdma.ErrFull, have, most)
	}
	for range n {
		conn, desc, err := x.connections.Export()
		if err != nil {
			return nil, err
		}
		x.conns = append(x.conns, conn)
		b.Connections = append(b.Connections, desc)
	}
	return b.Encode()
}

// connectionsOf returns how many connections the exchange makes.
func (x *exchange) connectionsOf(offer *Offer) int {
	if x.datagrams != nil {
		return 0
	}
	return offer.connections()
}

// bundle makes the bundle of the offer without connections.
func (x *exchange) bundle(offer Offer) (*descriptor.Bundle, error) {
	p := x.peer
	if s := x.r.State(); s != pe.Starting && s != pe.Running {
		return nil, &pe.StateError{Op: "exchange descriptors", Object: fmt.Sprintf("context %q", x.r.Name()),
			State: s, Legal: []pe.State{pe.Starting, pe.Running}}
	}
	if err := p.begin(x.r); err != nil {
		return nil, err
	}
	b := &descriptor.Bundle{From: p.cfg.Name, To: p.cfg.Peer, Data: offer.Data}
	for _, m := range offer.Maps {
		desc, err := m.ExportPD(x.r.PD())
		if err != nil {
			return nil, err
		}
		b.Maps = append(b.Maps, desc)
	}
	for _, e := range offer.Events {
		desc, err := e.Export()
		if err != nil {
			return nil, err
		}
		b.Events = append(b.Events, desc)
	}
	return b, nil
}

// end ends the exchange, once. After an error it closes the connections, because the program
// has no handle to them.
func (x *exchange) end(a *Answer, err error) {
	if !x.call.end() {
		return
	}
	if x.onEnd != nil {
		err = x.onEnd(err)
	}
	if err == nil {
		x.peer.conns = slices.Clone(x.conns) // the program may change its own
		x.watch(a)
		x.callback(a, nil)
		return
	}
	err = errors.Join(err, x.closeConnections())
	x.callback(nil, fmt.Errorf("oob: exchange with %s through %v: %w", x.peer.cfg.Peer, x.peer.way, err))
}

// closeConnections closes the connections. On the engine's goroutine it does not fail.
func (x *exchange) closeConnections() (err error) {
	for _, conn := range x.conns {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// accept imports what the peer offers, and connects.
func (x *exchange) accept(theirs []byte) (*Answer, error) {
	b, err := descriptor.DecodeBundle(theirs)
	if err != nil {
		return nil, err
	}
	a, err := x.importOffer(b, len(x.conns))
	if err != nil {
		return nil, err
	}
	return a, x.connect(a, b)
}

// importOffer imports the maps and the events that the peer offers, if it is the right peer and
// the offer is what this program needs.
func (x *exchange) importOffer(b *descriptor.Bundle, connections int) (_ *Answer, err error) {
	if err := x.peer.checkOffer(b, connections); err != nil {
		return nil, err
	}
	a, dev := &Answer{Data: b.Data}, x.r.Device()
	defer func() {
		if err != nil {
			closeImports(a.Maps, a.Events)
		}
	}()
	for _, desc := range b.Maps {
		m, err := mmap.Import(dev, desc)
		if err != nil {
			return nil, err
		}
		a.Maps = append(a.Maps, m)
	}
	for _, desc := range b.Events {
		e, err := syncevent.Import(dev, desc)
		if err != nil {
			return nil, err
		}
		a.Events = append(a.Events, e)
	}
	return a, nil
}

// checkOffer refuses an offer of another program, and one that this program cannot use.
func (p *Peer) checkOffer(b *descriptor.Bundle, connections int) error {
	if b.From != p.cfg.Peer || b.To != p.cfg.Name {
		return notFrom(p.ends, b.From, b.To)
	}
	if n := len(b.Connections); n != connections {
		return differentNumber(b.From, n, connections)
	}
	if e := p.cfg.Expect; e != nil && (len(b.Maps) != e.Maps || len(b.Events) != e.Events) {
		wrong := ErrWrongPeer
		if len(b.Maps)+len(b.Events) == e.Maps+e.Events {
			wrong = fmt.Errorf("%w: a %w", ErrWrongPeer, descriptor.ErrKind)
		}
		return fmt.Errorf("%w: %s offers %s, but this program expects %s", wrong, p.cfg.Peer,
			amount(len(b.Maps), len(b.Events)), amount(e.Maps, e.Events))
	}
	return nil
}

// differentNumber is the error for ends that offer different numbers of connections.
func differentNumber(peer string, theirs, ours int) error {
	return fmt.Errorf("%w: %s offers %d connections, but this program offers %d: give both the same number", ErrWrongPeer, peer, theirs, ours)
}

// connect connects the exported connections to the peer's, or makes the rdma.Peer of the
// peer's endpoint. If that fails, it closes what was imported.
func (x *exchange) connect(a *Answer, b *descriptor.Bundle) error {
	err := x.makePeer(a, b.Endpoints)
	for i, conn := range x.conns {
		if err == nil {
			err = conn.Connect(b.Connections[i])
		}
	}
	if err != nil {
		closeImports(a.Maps, a.Events)
	}
	a.Connections = x.conns
	return err
}

// makePeer makes the rdma.Peer in a context of datagrams.
func (x *exchange) makePeer(a *Answer, endpoints [][]byte) (err error) {
	switch {
	case x.datagrams == nil && len(endpoints) > 0:
		return fmt.Errorf("%w: %s has a context of datagrams, but this program has a context of connections: make the same kind in both", ErrWrongPeer, x.peer.cfg.Peer)
	case x.datagrams == nil:
		return nil
	case len(endpoints) != 1:
		return fmt.Errorf("%w: %s offers %d endpoints; a program with datagrams offers exactly one", ErrWrongPeer, x.peer.cfg.Peer, len(endpoints))
	}
	a.Peer, err = x.datagrams.NewPeer(endpoints[0])
	return err
}

// amount says how many maps and events there are.
func amount(maps, events int) string {
	switch {
	case events == 0 && maps == 1:
		return "a memory map"
	case events == 0 && maps > 0:
		return fmt.Sprintf("%d memory maps", maps)
	case maps == 0 && events == 1:
		return "a sync event"
	case maps == 0 && events == 0:
		return "neither memory maps nor sync events"
	}
	return fmt.Sprintf("%d memory maps and %d sync events", maps, events)
}

// watch follows the connections of the exchange: it updates Waiting, and fails a Starting
// context with its connection.
func (x *exchange) watch(a *Answer) {
	p := x.peer
	p.mu.Lock()
	p.exchanged = x.r
	p.mu.Unlock()
	connection := "the connection to " + p.cfg.Peer
	if len(x.conns) > 0 {
		p.waitFor(connection)
	} else {
		p.waitEnded("")
	}
	ready := 0
	x.watchUntilClosed(a, func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Closed && p.way.cm != nil:
			p.way.cm.closed(conn, err)
		case state == rdma.Failed && x.r.State() == pe.Starting:
			x.r.Fail(err)
		case state == rdma.Ready:
			if ready++; ready == len(p.conns) {
				p.waitEnded(connection)
			}
		}
	}, func(next pe.State) {
		if next == pe.Running {
			p.waitEnded(connection)
		}
	})
}

// watchUntilClosed closes what was imported when all connections of the exchange are Closed, or the
// context is Idle: from then on no task refers to it. Until then it calls changed for state
// changes of the connections, and entered for those of the context. Both may be nil.
func (x *exchange) watchUntilClosed(a *Answer, changed func(conn *rdma.Connection, state rdma.ConnectionState, err error), entered func(next pe.State)) {
	open := map[*rdma.Connection]bool{}
	for _, conn := range x.conns {
		open[conn] = true
	}
	maps, events := slices.Clone(a.Maps), slices.Clone(a.Events) // the program may change its own
	var unwatch, unwatchConnections func()
	end := func() {
		unwatch()
		unwatchConnections()
		closeImports(maps, events)
	}
	unwatchConnections = watchConnections(x.r, func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if !open[conn] {
			return
		}
		if changed != nil {
			changed(conn, state, err)
		}
		if state != rdma.Closed {
			return
		}
		if delete(open, conn); len(open) == 0 && !stopping(x.r) {
			end() // if the context is stopping, the imports stay until it is Idle
		}
	})
	unwatch = x.r.Watch(func(_, next pe.State) {
		if entered != nil {
			entered(next)
		}
		if next == pe.Idle {
			end()
		}
	})
}

// closeImports closes what was imported. Closing a map fails while a buffer still lies in it;
// the error is ignored, because an imported map holds no resource of the device.
func closeImports(maps []*mmap.Map, events []*syncevent.Event) {
	for _, m := range maps {
		_ = m.Close()
	}
	for _, e := range events {
		_ = e.Close()
	}
}

// watchConnections calls f for the connections of a context, if it has any, until stop is called.
func watchConnections(r rdma.Context, f func(conn *rdma.Connection, state rdma.ConnectionState, err error)) (stop func()) {
	if c, ok := r.(*rdma.Connections); ok {
		return c.WatchConnections(f)
	}
	return func() {}
}
