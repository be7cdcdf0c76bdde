package oob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config says who the two programs are.
type Config struct {
	// Name is that of this program, and Peer that of the other: two different ones, of
	// letters, digits and . _ - +.
	Name, Peer string
	// Role is what this program is; the other is the opposite. Zero: Requester.
	Role Role
	// Expect is what the peer has to offer beside connections, exactly; anything else
	// is an error that matches ErrWrongPeer. Nil: whatever it does.
	Expect *Expect
	// Notify takes lines for the person who runs the program: what to paste, that the
	// wrong program is there. It may be called from any goroutine. Nil: they go to
	// standard error, after the program's name. During one wait it gets at most 64.
	Notify func(line string)
	// Log receives what is waited for (info). The zero value is silent.
	Log zerolog.Logger
}

// Expect is how many memory maps and sync events a peer has to offer.
type Expect struct {
	Maps   int // memory maps
	Events int // sync events
}

// Offer is what a program gives to its peer. The zero value is one connection.
type Offer struct {
	// Connections is how many connections to make with the peer, which has to give the
	// same number. They are exported in order, and the first is connected to the
	// peer's first. Zero: 1. Negative: none, for Peer.Exchange only. A context of
	// datagrams makes none: it offers its endpoint.
	Connections int
	// Maps are memory maps that the peer may reach, on the device of the context and
	// in its protection domain.
	Maps []*mmap.Map
	// Events are sync events that the peer may reach.
	Events []*syncevent.Event
	// Data is bytes of the program's own, such as the size of its messages. With all
	// descriptors they have to fit into descriptor.MaxPayload, less 2 KiB for the names
	// and what a way puts around them.
	Data []byte
}

// connections is how many connections are offered.
func (o *Offer) connections() int {
	if o.Connections == 0 {
		return 1
	}
	return max(o.Connections, 0)
}

// Answer is what the peer has offered.
type Answer struct {
	// Connections are the ones that were exported, in order. They are Connecting; nothing
	// has been reported of them yet, and no message has come.
	Connections []*rdma.Connection
	// Peer is the endpoint of the other program, in a context of datagrams; otherwise nil.
	Peer *rdma.Peer
	// Maps are the peer's, in the order in which it offered them. They belong to the
	// connections, or to the context where there are none: when all of these are Closed they are closed too, after the callbacks
	// that report it; where the context stops, when it is Idle. The program does not
	// close them. A connection that has Failed is Closed after its Close.
	Maps []*mmap.Map
	// Events are the peer's in the same way.
	Events []*syncevent.Event
	// Data is the bytes of the peer's own; nil if there are none.
	Data []byte
}

// Peer is the other program, as far as it is found and spoken to out of band. It is for
// one exchange. Connect, Exchange, Done and EndWith belong to the goroutine that drives
// the engine; Waiting and Close may be called from any.
type Peer struct {
	way    Way
	cfg    Config
	ends   Ends
	ctx    context.Context // of the functions that run beside the engine
	cancel context.CancelCauseFunc

	outcomeTimeout time.Duration

	inDone sync.Mutex // held in Way.Done

	// These belong to the engine's goroutine.
	conns       []*rdma.Connection // of the exchange
	asking      bool               // Done has been called, and its function not yet
	endsContext bool               // that was Done(nil)
	reported    bool               // the peer has reported how it ended

	closing    sync.Once
	mu         sync.Mutex
	beside     sync.WaitGroup
	closed     bool
	used       bool
	met        rdma.Context // the exchange has succeeded
	exchanging rdma.Context // it has begun
	waiting    string       // what is waited for, or was when it was given up
	notes      string       // what was noted meanwhile
	noted      int          // how many lines in this wait
}

// Open makes a Peer by the way that a text names, as Parse does. Its errors match
// ErrInvalid.
func Open(way string, cfg Config) (*Peer, error) {
	w, err := Parse(way)
	if err != nil {
		return nil, fmt.Errorf("oob: %w", err)
	}
	return New(w, cfg)
}

// New makes a Peer by any way. It opens nothing yet. Its errors match ErrInvalid.
func New(way Way, cfg Config) (*Peer, error) {
	if way == nil {
		return nil, fmt.Errorf("oob: make a peer: %w: no way is given", ErrInvalid)
	}
	p := &Peer{way: way, cfg: cfg, ends: Ends{Name: cfg.Name, Peer: cfg.Peer, Role: cfg.Role}, outcomeTimeout: outcomeTimeout}
	p.ends.Note = p.note
	err := errors.Join(checkName("this program", cfg.Name), checkName("the peer", cfg.Peer))
	switch {
	case err != nil:
	case cfg.Name == cfg.Peer:
		err = fmt.Errorf("%w: both programs are named %s; give them different names", ErrInvalid, cfg.Name)
	case cfg.Role != Requester && cfg.Role != Responder:
		err = fmt.Errorf("%w: the role is %v", ErrInvalid, cfg.Role)
	}
	if c, ok := way.(checker); ok && err == nil {
		err = c.check(p.ends)
	}
	if err != nil {
		return nil, fmt.Errorf("oob: %w", err)
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// opened fails for a Peer that New did not make.
func (p *Peer) opened(op string) error {
	if p == nil || p.way == nil || p.cancel == nil {
		return fmt.Errorf("oob: %s: %w: it was not made by Open or New", op, ErrInvalid)
	}
	return nil
}

// Connect makes one connection with the peer: it is Exchange for the common case. maps
// are what the peer may reach. f gets the connection, and the first memory map that the
// peer offers, or nil. Without f, for a program that needs neither, an error fails r.
func (p *Peer) Connect(r *rdma.Connections, f func(c *rdma.Connection, m *mmap.Map, err error), maps ...*mmap.Map) {
	if f == nil {
		p.Exchange(context.Background(), r, Offer{Maps: maps}, nil)
		return
	}
	p.Exchange(context.Background(), r, Offer{Maps: maps}, func(a *Answer, err error) {
		if err != nil {
			f(nil, nil, err)
			return
		}
		var m *mmap.Map
		if len(a.Maps) > 0 {
			m = a.Maps[0]
		}
		f(a.Connections[0], m, nil)
	})
}

// Exchange exports what the offer says, gives it to the peer, waits for what the peer
// offers, imports that, and connects. It does not block: f is called later, once, on
// the engine's goroutine, inside Progress.
//
// It is legal in Starting and Running, best in the callback that reports Starting: the
// context is Running when all connections are Ready, and not before. A connection that
// fails until then fails the context.
//
// Where f gets an error, the connections that were exported are closed. It gets one when
// something cannot be exported or imported, when the way fails, when ctx ends (it matches
// context.Cause(ctx)), when the context stops (ErrFlushed), when the Peer is closed
// (ErrClosed), when the peer is not the one that is meant or does not offer what
// Config.Expect says (ErrWrongPeer), and in a second exchange (ErrInUse). The program then
// stops the context, best with Fail(err), which ignores ErrFlushed of a context that has
// stopped. Without r, or an engine, f is called at once (ErrInvalid, pe.ErrNotConnected).
// Without f, an error is given to r.Fail, and what the peer offers is for nobody.
func (p *Peer) Exchange(ctx context.Context, r rdma.Context, offer Offer, f func(a *Answer, err error)) {
	if f == nil {
		f = func(_ *Answer, err error) { fail(r, err) }
	}
	if err := p.opened("exchange with a peer"); err != nil {
		f(nil, err)
		return
	}
	if r == nil {
		f(nil, fmt.Errorf("oob: exchange with %s: %w: no context is given", p.cfg.Peer, ErrInvalid))
		return
	}
	if ctx == nil {
		ctx = context.Background()
	}
	engine := r.Engine()
	if engine == nil {
		f(nil, fmt.Errorf("oob: exchange with %s: %w", p.cfg.Peer, pe.ErrNotConnected))
		return
	}
	x := newExchange(p, r)
	x.answer = f
	if w, ok := p.way.(connector); ok {
		if err := w.meet(ctx, x, offer); err != nil {
			_ = engine.Do(func() { x.fail(err) })
		}
		return
	}
	ours, err := x.export(offer)
	if err != nil {
		_ = engine.Do(func() { x.fail(err) }) // fails only once nothing runs any more
		return
	}
	p.waitFor(fmt.Sprintf("the descriptors of %s, through %v", p.cfg.Peer, p.way))
	x.call = newCall(engine, r, func(err error) { x.finish(nil, err) })
	var theirs []byte
	x.call.beside(p, ctx, func(ctx context.Context) (err error) {
		theirs, err = p.way.Exchange(ctx, p.ends, ours)
		return err
	}, func(err error) { x.finish(theirs, err) })
}

// fail is r.Fail where there is one.
func fail(r rdma.Context, err error) {
	if r != nil {
		r.Fail(err)
	}
}

// exchange is one exchange under way. It belongs to the engine's goroutine.
type exchange struct {
	peer        *Peer
	r           rdma.Context
	connections *rdma.Connections // it, or nil
	datagrams   *rdma.Datagrams   // likewise
	call        *call
	conns       []*rdma.Connection
	answer      func(*Answer, error)
}

func newExchange(p *Peer, r rdma.Context) *exchange {
	x := &exchange{peer: p, r: r}
	x.connections, _ = r.(*rdma.Connections)
	x.datagrams, _ = r.(*rdma.Datagrams)
	return x
}

// export makes the bundle of what is offered, with connections.
func (x *exchange) export(offer Offer) ([]byte, error) {
	b, err := x.bundle(offer)
	if err != nil {
		return nil, err
	}
	// The connections come last, and all or none as far as that is known: those that are
	// closed again are reported to the program.
	if x.datagrams != nil {
		desc, err := x.datagrams.ExportEndpoint()
		if err != nil {
			return nil, err
		}
		b.Endpoints = [][]byte{desc}
		return b.Encode()
	}
	n := offer.connections()
	if have, most := len(x.connections.List()), x.connections.Config().MaxConnections; n > 1 && have+n > most {
		return nil, fmt.Errorf("export %d connections of context %q: %w: %d of %d are taken; close some, or raise Config.MaxConnections",
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
	x.peer.conns = slices.Clone(x.conns) // the program may change its own
	return b.Encode()
}

// connectionsOf is how many connections the exchange makes.
func (x *exchange) connectionsOf(offer *Offer) int {
	if x.datagrams != nil {
		return 0
	}
	return offer.connections()
}

// bundle makes the bundle of what is offered beside connections.
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

// finish ends the exchange, once, with what has arrived or with an error.
func (x *exchange) finish(theirs []byte, err error) {
	if !x.call.end() {
		return
	}
	var a *Answer
	if err == nil {
		a, err = x.accept(theirs)
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.watch(a)
	x.answer(a, nil)
}

// fail ends the exchange without connections: the program has no handle to close them.
func (x *exchange) fail(err error) {
	p := x.peer
	err = errors.Join(err, x.closeConnections())
	x.answer(nil, fmt.Errorf("oob: exchange with %s through %v: %w", p.cfg.Peer, p.way, err))
}

// closeConnections closes what was exported. On the engine's goroutine it does not fail.
func (x *exchange) closeConnections() (err error) {
	for _, conn := range x.conns {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// accept imports what the peer offers, and connects.
func (x *exchange) accept(theirs []byte) (*Answer, error) {
	b, err := x.peer.decode(theirs, len(x.conns))
	if err != nil {
		return nil, err
	}
	a, err := importBundle(x.r.Device(), b)
	if err != nil {
		return nil, err
	}
	return a, x.connect(a, b)
}

// decode takes apart what the peer offers, and checks that it is what this program needs.
func (p *Peer) decode(theirs []byte, connections int) (*descriptor.Bundle, error) {
	b, err := descriptor.DecodeBundle(theirs)
	if err != nil {
		return nil, err
	}
	if b.From != p.cfg.Peer || b.To != p.cfg.Name {
		return nil, notFrom(p.ends, b.From, b.To)
	}
	if len(b.Connections) != connections {
		return nil, fmt.Errorf("%w: %s offers %d connections, this program %d: give both the same number",
			ErrWrongPeer, p.cfg.Peer, len(b.Connections), connections)
	}
	if e := p.cfg.Expect; e != nil && (len(b.Maps) != e.Maps || len(b.Events) != e.Events) {
		wrong := ErrWrongPeer
		if len(b.Maps)+len(b.Events) == e.Maps+e.Events {
			wrong = fmt.Errorf("%w: a %w", ErrWrongPeer, descriptor.ErrKind)
		}
		return nil, fmt.Errorf("%w: %s offers %s, this program needs %s", wrong, p.cfg.Peer,
			amount(len(b.Maps), len(b.Events)), amount(e.Maps, e.Events))
	}
	return b, nil
}

// importBundle imports the maps and the events of a bundle.
func importBundle(dev verbs.Device, b *descriptor.Bundle) (_ *Answer, err error) {
	a := &Answer{Data: b.Data}
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

// connect connects what was exported to the peer's, or makes the peer that its endpoint
// is. If that fails, it closes what was imported.
func (x *exchange) connect(a *Answer, b *descriptor.Bundle) error {
	if err := x.makePeer(a, b.Endpoints); err != nil {
		closeImports(a.Maps, a.Events)
		return err
	}
	for i, conn := range x.conns {
		if err := conn.Connect(b.Connections[i]); err != nil {
			closeImports(a.Maps, a.Events)
			return err
		}
	}
	a.Connections = x.conns
	return nil
}

// makePeer makes the peer in a context of datagrams.
func (x *exchange) makePeer(a *Answer, endpoints [][]byte) (err error) {
	switch {
	case x.datagrams == nil && len(endpoints) > 0:
		return fmt.Errorf("%w: %s has an endpoint of datagrams, this program connections: make the same kind of context in both", ErrWrongPeer, x.peer.cfg.Peer)
	case x.datagrams == nil:
		return nil
	case len(endpoints) != 1:
		return fmt.Errorf("%w: %s offers %d endpoints, and a program with datagrams has one", ErrWrongPeer, x.peer.cfg.Peer, len(endpoints))
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

// watch follows what the exchange has made, for Waiting, and for a context that is
// Starting.
func (x *exchange) watch(a *Answer) {
	p := x.peer
	p.mu.Lock()
	p.met = x.r
	p.mu.Unlock()
	connection := "the connection to " + p.cfg.Peer
	if len(x.conns) > 0 {
		p.waitFor(connection)
	} else {
		p.waited("")
	}
	ready := 0
	x.follow(a, func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Failed && x.r.State() == pe.Starting:
			x.r.Fail(err)
		case state == rdma.Ready:
			if ready++; ready == len(p.conns) {
				p.waited(connection)
			}
		}
	}, func(next pe.State) {
		if next == pe.Running {
			p.waited(connection)
		}
	})
}

// follow closes what was imported when all connections of the exchange are Closed, or the
// context is Idle: no task is under way that refers to it. Until then it calls changed for
// the connections of the exchange, and entered for the context; they may be nil.
func (x *exchange) follow(a *Answer, changed func(conn *rdma.Connection, state rdma.ConnectionState, err error), entered func(next pe.State)) {
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
			end() // a context that stops keeps them until it is Idle
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

// watchConnections calls f for the connections of a context, if it has any, until stop is called.
func watchConnections(r rdma.Context, f func(conn *rdma.Connection, state rdma.ConnectionState, err error)) (stop func()) {
	if c, ok := r.(*rdma.Connections); ok {
		return c.WatchConnections(f)
	}
	return func() {}
}

// closeImports closes what was imported. Where a buffer still lies in one, closing fails.
// Nothing is left behind for that: it holds nothing of the device.
func closeImports(maps []*mmap.Map, events []*syncevent.Event) {
	for _, m := range maps {
		_ = m.Close()
	}
	for _, e := range events {
		_ = e.Close()
	}
}

// made reports whether a connection is one of the exchange.
func (p *Peer) made(conn *rdma.Connection) bool { return slices.Contains(p.conns, conn) }

// begun reports whether there has been an exchange.
func (p *Peer) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// begin notes that the exchange begins.
func (p *Peer) begin(r rdma.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return errPeerClosed
	case p.used:
		return fmt.Errorf("%w: a Peer is for one exchange; open another", ErrInUse)
	}
	p.used, p.exchanging = true, r
	return nil
}

// Waiting says what the Peer waits for, as in "the descriptors of reader, through the
// folder /tmp/x", and what was noted meanwhile. It is empty if it waits for nothing.
// When a wait has failed or was given up, it goes on to say what that was for.
func (p *Peer) Waiting() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting + p.notes
}

// String names the peer, and the way to it.
func (p *Peer) String() string { return fmt.Sprintf("%s, through %v", p.cfg.Peer, p.way) }

// waitFor notes what comes next. It takes the place of what came before.
func (p *Peer) waitFor(what string) {
	p.mu.Lock()
	p.waiting, p.notes, p.noted = what, "", 0
	p.mu.Unlock()
	p.cfg.Log.Info().Msg("waiting for " + what)
}

// waited notes that something has come; empty: whatever it was.
func (p *Peer) waited(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what == "" || p.waiting == what {
		p.waiting, p.notes = "", ""
	}
}

const (
	// maxNotes is how many bytes of notes Waiting returns.
	maxNotes = 1000
	// maxNoteLines is how many lines are noted during one wait, whatever a way has to say.
	maxNoteLines = 64
)

// note is Ends.Note.
func (p *Peer) note(text string) {
	p.mu.Lock()
	if p.noted++; p.noted > maxNoteLines {
		p.mu.Unlock()
		return
	}
	if len(p.notes)+len(text) < maxNotes {
		p.notes += "; " + text
	}
	p.mu.Unlock()
	if p.cfg.Notify != nil {
		p.cfg.Notify(text)
		return
	}
	if p.cfg.Name != "" { // else New did not make the Peer
		text = p.cfg.Name + ": " + text
	}
	_, _ = fmt.Fprintln(os.Stderr, text)
}

// Close ends what is under way, reports to the peer how this program has ended, if it
// is the requester and the exchange has succeeded, and removes what was made for the
// exchange. err is what the program failed with, such as the result of pe.Engine.Run;
// nil is success. Call it when the engine no longer runs. Closing again only waits for
// a Close that is under way.
func (p *Peer) Close(err error) (result error) {
	if err := p.opened("close a peer"); err != nil {
		return err
	}
	p.closing.Do(func() { result = p.close(err == nil) })
	return result
}

func (p *Peer) close(ok bool) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(errPeerClosed)
	p.beside.Wait()
	if err := p.way.Close(ok); err != nil {
		return fmt.Errorf("oob: end the exchange with %s through %v: %w", p.cfg.Peer, p.way, err)
	}
	return nil
}
