package oob

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// host is whom guests visit: a responder, or a Listener.
type host interface {
	// peerFor is the Peer that checks what a program of that name offers.
	peerFor(name string) *Peer
	// admit takes a guest whose connections are up, and whose names are right: it replies
	// to it, or turns it away.
	admit(g *guest, theirs []byte)
	// rejected is told of those that are turned away, and noRoom of those that have to try
	// again.
	rejected(from netip.AddrPort, err error)
	noRoom(err error)
}

// reception takes the connections of requesters, and what they offer. It belongs to the
// engine's goroutine.
type reception struct {
	host        host
	r           *rdma.Connections
	connections int  // of each guest
	reports     bool // guests are to report how they end
	listener    *rdma.Listener
	guests      map[greeting.Token]*guest // that are not settled
	waiting     []*guest                  // that have not introduced themselves, the oldest first
	closed      bool
}

// guestTimeout is how long a guest may take to introduce itself.
var guestTimeout = helloTimeout

// open begins to take connections.
func (c *reception) open(address string) (err error) {
	c.guests, c.waiting, c.closed = make(map[greeting.Token]*guest), nil, false
	c.listener, err = c.r.Listen(address, rdma.ListenConfig{OnRequest: c.request})
	return err
}

// addr is an address that reaches the listener.
func (c *reception) addr() netip.AddrPort {
	a := c.listener.Addr()
	if a.Addr().IsUnspecified() {
		a = netip.AddrPortFrom(c.r.GID().GID.Addr(), a.Port())
	}
	return a
}

// close takes no more, and turns away those that have not introduced themselves. Those that
// have been replied to go on.
func (c *reception) close() {
	if c.closed {
		return
	}
	c.closed = true
	if c.listener != nil {
		_ = c.listener.Close() // on the engine's goroutine it does not fail
	}
	for _, g := range slices.Clone(c.waiting) {
		g.leave()
	}
}

// forget ends everything that is not settled, when the context stops.
func (c *reception) forget() {
	c.close()
	for _, g := range c.guests {
		g.leave()
	}
}

// request handles a request for a connection.
func (c *reception) request(q *rdma.ConnectRequest) {
	first, further, err := greeting.ReadRequest(q.PrivateData())
	switch {
	case c.closed:
		c.busy(q, errors.New("it listens no more"))
		return
	case err != nil:
	case first != nil:
		err = c.first(q, first)
	default:
		err = c.further(q, further)
	}
	switch {
	case err == nil:
	case errors.Is(err, rdma.ErrNotReady): // it has given up
	case errors.Is(err, rdma.ErrFull) || errors.Is(err, pe.ErrBadState): // these pass
		c.host.noRoom(err)
		c.busy(q, err)
	default:
		_ = q.Reject((&greeting.Refusal{Text: err.Error()}).Encode())
		c.host.rejected(q.RemoteAddr(), err)
	}
}

// busy has a requester try again.
func (c *reception) busy(q *rdma.ConnectRequest, why error) {
	_ = q.Reject((&greeting.Refusal{Busy: true, Text: why.Error()}).Encode())
}

// first takes the first connection of a guest.
func (c *reception) first(q *rdma.ConnectRequest, r *greeting.Request) error {
	switch {
	case int(r.Connections) != c.connections:
		return differentNumber("the requester", int(r.Connections), c.connections)
	case r.Length > maxBundle || r.Length == 0:
		return fmt.Errorf("%w: it announces a bundle of %d bytes, at most %d are allowed", descriptor.ErrTooBig, r.Length, maxBundle)
	case c.guests[r.Token] != nil:
		return fmt.Errorf("%w: its token is one that has been used", descriptor.ErrFormat)
	}
	if len(c.waiting) == maxPending {
		c.waiting[0].leave()
	}
	g := &guest{reception: c, token: r.Token, from: q.RemoteAddr(), peer: r.Landing, conns: make([]*rdma.Connection, c.connections)}
	l, err := newLanding(c.r, int(r.Length), g.check)
	if err != nil {
		return err
	}
	g.landing = l
	accepted := &greeting.Acceptance{Landing: l.place(), Reports: c.reports}
	if g.conns[0], err = q.Accept(rdma.AcceptConfig{PrivateData: accepted.Encode(), Held: g.changed}); err != nil {
		l.close()
		return err
	}
	g.open = 1
	c.guests[g.token] = g
	c.waiting = append(c.waiting, g)
	engine := c.r.Engine()
	g.timer = time.AfterFunc(guestTimeout, func() { _ = engine.Do(g.expire) })
	return nil
}

// further takes another connection of a guest.
func (c *reception) further(q *rdma.ConnectRequest, f *greeting.Further) error {
	g := c.guests[f.Token]
	if g == nil || g.state != guestWaits || int(f.Index) >= len(g.conns) || g.conns[f.Index] != nil {
		return fmt.Errorf("%w: nobody has announced the connection", descriptor.ErrFormat)
	}
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: greeting.FurtherAcceptance(), Held: g.changed})
	if err != nil {
		return err
	}
	g.conns[f.Index] = conn
	g.open++
	return nil
}

type guestState int

const (
	guestWaits     guestState = iota // for its bundle, and its connections
	guestReplied                     // the program has it, and it gets our bundle
	guestDismissed                   // it gets the reason for which it is turned away
	guestLeft                        // it is nobody any more
)

// guest is a requester that has dialled. Memory and connections are bounded by the places of
// the context and by maxPending.
type guest struct {
	reception *reception
	state     guestState
	token     greeting.Token
	from      netip.AddrPort
	peer      greeting.Landing
	landing   *landing
	conns     []*rdma.Connection // nil: not made yet
	open      int                // of them that are not Closed
	up        int                // of them
	answers   bool               // the first of them is up, so that the guest can be answered
	theirs    []byte             // its bundle, once it has come
	timer     *time.Timer
	unwatch   func()
	then      func() // to be called when it has left
}

// changed follows the connections until the program has them.
func (g *guest) changed(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
	switch state {
	case rdma.Ready:
		g.up++
		g.answers = g.answers || conn == g.conns[0]
		g.check()
	case rdma.Failed:
		_ = conn.Close() // on the engine's goroutine it does not fail
		g.gone()
	case rdma.Closed:
		g.gone()
	}
}

// gone notes that a connection has ended. Whose end it was is not known before the guest has
// introduced itself: this end goes on waiting, and says so.
func (g *guest) gone() {
	if g.state == guestWaits && !g.reception.closed {
		g.reception.host.rejected(g.from, errors.New("it has ended before it introduced itself; waiting for another"))
	}
	g.leave()
}

// expire turns a guest away that has not introduced itself in time.
func (g *guest) expire() {
	if g.state == guestWaits {
		g.reception.host.rejected(g.from, fmt.Errorf("%w: it has not introduced itself within %v", rdma.ErrTimeout, guestTimeout))
	}
	if g.state == guestWaits || g.state == guestDismissed {
		g.leave()
	}
}

// check looks for what the guest has written.
func (g *guest) check() {
	switch g.state {
	case guestWaits:
		if !g.answers {
			return // what it writes can come before it is up here
		}
		if g.theirs == nil {
			g.read()
		}
		if g.state == guestWaits && g.theirs != nil && g.up == len(g.conns) {
			g.reception.host.admit(g, g.theirs)
		}
	case guestReplied:
		w, err := g.landing.word(greeting.ConfirmedWord)
		if err != nil || w.Kind == greeting.Confirmed {
			g.confirmed()
		}
	}
}

// read takes the bundle, if it has come, and turns away whoever is not meant.
func (g *guest) read() {
	w, err := g.landing.word(greeting.AnswerWord)
	if err == nil && w == (greeting.Word{}) {
		return
	}
	if err == nil && w.Kind != greeting.Complete {
		err = fmt.Errorf("%w: the word %v is not expected here", descriptor.ErrFormat, w)
	}
	var content []byte
	if err == nil {
		content, err = g.landing.landed(w)
	}
	var b *descriptor.Bundle
	if err == nil {
		b, err = descriptor.DecodeBundle(content)
	}
	if err != nil {
		g.turnAway(greeting.Refused, err, nil)
		return
	}
	ends := g.reception.host.peerFor(b.From).ends
	if checkName("", b.From) != nil || b.From != ends.Peer || b.To != ends.Name {
		g.turnAway(greeting.Names, notFrom(ends, b.From, b.To), nil)
		return
	}
	g.theirs = content
}

// introduced takes the guest off those that wait.
func (g *guest) introduced(state guestState) {
	g.state = state
	c := g.reception
	c.waiting = slices.DeleteFunc(c.waiting, func(o *guest) bool { return o == g })
}

// turnAway gives the guest the reason, or the names of the programs that this end is for,
// and ends its connections. then is called when that is done; it may be nil.
func (g *guest) turnAway(kind greeting.WordKind, why error, then func()) {
	g.introduced(guestDismissed)
	g.then = then
	g.reception.host.rejected(g.from, why)
	content := []byte(greeting.Cut(why.Error(), maxRefusal))
	if kind == greeting.Names {
		ends := g.reception.host.peerFor("").ends
		if ends.Peer == "" {
			ends.Peer = "any"
		}
		content, _ = (&descriptor.Bundle{From: ends.Name, To: ends.Peer}).Encode() // the names have been checked
	}
	err := errors.New("it has no connection")
	if len(g.conns) > 0 && g.conns[0] != nil {
		err = g.landing.send(g.conns[0], g.peer, kind, content, func(error) { g.leave() })
	}
	if err != nil {
		g.leave()
	}
}

// leave ends the guest's connections, unless the program has them, and gives its memory
// back.
func (g *guest) leave() {
	if g.state == guestLeft {
		return
	}
	replied := g.state == guestReplied
	g.introduced(guestLeft)
	g.timer.Stop()
	if g.unwatch != nil {
		g.unwatch()
	}
	delete(g.reception.guests, g.token)
	if !replied {
		for _, conn := range g.conns {
			if conn != nil {
				_ = conn.Close() // on the engine's goroutine it does not fail
			}
		}
	}
	g.landing.close()
	if g.then != nil {
		g.then()
	}
}

// intact reports whether the guest still has all of its connections.
func (g *guest) intact() bool {
	return g.state == guestWaits && !slices.ContainsFunc(g.conns, func(conn *rdma.Connection) bool { return conn.State() != rdma.Connecting })
}

// reply hands the connections over to the program, and gives the guest our bundle. It
// reports whether the connections are still there.
func (g *guest) reply(ours []byte) bool {
	for _, conn := range g.conns {
		if g.state != guestWaits || conn.Announce() != nil {
			g.leave()
			return false
		}
	}
	g.introduced(guestReplied)
	g.unwatch = g.reception.r.WatchConnections(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		if (state == rdma.Closed || state == rdma.Failed) && slices.Contains(g.conns, conn) {
			g.leave()
		}
	})
	if err := g.landing.send(g.conns[0], g.peer, greeting.Complete, ours, func(error) {}); err != nil {
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		g.leave()
	}
	return true
}

// confirmed makes the connections Ready: the requester's are.
func (g *guest) confirmed() {
	for _, conn := range g.conns {
		_ = conn.Established() // fails where it has ended
	}
	g.leave()
}

// expecting is the responder's end of an exchange by connection manager.
type expecting struct {
	making
	address   string // to listen on
	fail      func(err error)
	reception reception
	turned    int // how many were turned away
}

func (e *expecting) prepare(ctx context.Context) (err error) {
	e.address, err = listenAddress(ctx, e.x.connections, e.way.address)
	return err
}

func (e *expecting) begin(fail func(err error)) {
	e.fail = fail
	e.reception = reception{host: e, r: e.x.connections, connections: e.connections, reports: true}
	if err := e.reception.open(e.address); err != nil {
		fail(err)
		return
	}
	var unwatch func()
	unwatch = e.x.r.Watch(func(_, next pe.State) {
		if next == pe.Stopping || next == pe.Idle {
			e.reception.forget()
			unwatch()
		}
	})
}

// giveUp implements meeting.
func (e *expecting) giveUp(err error) {
	e.reception.close()
	e.x.conns = nil
	e.x.fail(err)
}

// peerFor implements host.
func (e *expecting) peerFor(string) *Peer { return e.x.peer }

// noRoom implements host.
func (e *expecting) noRoom(err error) {
	e.x.peer.cfg.Log.Warn().Err(err).Msg("a requester has to wait")
}

// rejected implements host.
func (e *expecting) rejected(from netip.AddrPort, err error) {
	if e.turned++; e.turned <= maxRejections {
		e.x.peer.ends.Note(fmt.Sprintf("a connection from %v to %v was rejected: %v", from, e.way, err))
	}
}

// admit implements host.
func (e *expecting) admit(g *guest, theirs []byte) {
	x := e.x
	addr := e.reception.listener.Addr()
	answer, err := x.acceptMade(theirs, g.conns)
	if err == nil {
		err = e.takeReports(addr, g.token)
		if err != nil {
			closeImports(answer.Maps, answer.Events)
		}
	}
	if err != nil {
		g.turnAway(greeting.Refused, err, func() { e.fail(err) })
		return
	}
	if !e.end() {
		closeImports(answer.Maps, answer.Events)
		g.leave()
		return
	}
	defer func() {
		if g.state == guestWaits { // the program has panicked
			g.leave()
		}
		e.reception.close()
		e.release()
	}()
	x.watch(answer)
	x.answer(answer, nil)
	g.reply(e.ours)
}

// takeReports listens for the report of the requester, for as long as the context runs.
func (e *expecting) takeReports(addr netip.AddrPort, token greeting.Token) error {
	taker, err := takeReports(e.way, e.x.connections, addr, token)
	if err != nil {
		return err
	}
	var unwatch func()
	unwatch = e.x.r.Watch(func(_, next pe.State) {
		if next == pe.Idle {
			unwatch()
			taker.close()
		}
	})
	return nil
}
