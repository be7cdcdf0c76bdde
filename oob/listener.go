package oob

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/oob/internal/frame"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Listener is where any number of clients find a server by one name, one after another
// and at the same time. A client needs nothing special: it opens a Peer as a Requester,
// by the way that the server listens on, and exchanges. Clients may have any name, also
// all the same one.
type Listener struct {
	cfg      Config
	listener net.Listener
	closing  sync.Once

	mu     sync.Mutex
	guests *guests // nil before Serve
	closed bool
	beside sync.WaitGroup
}

// Listen opens the place where clients find the server: tcp:HOST:PORT, as in Parse; with
// port 0 the system chooses one, see Addr. Other ways are for pairs, and fail with an
// error that matches ErrInvalid. Clients that come before Serve wait.
//
// Of cfg, Name is the server's, and Peer that of the clients; empty: any. Expect is what
// each client has to offer. Role and Notify are ignored. Log receives which clients came
// and left (info), and who was lost or rejected, and why (warn).
func Listen(way string, cfg Config) (*Listener, error) {
	w, err := Parse(way)
	if err != nil {
		return nil, fmt.Errorf("oob: listen: %w", err)
	}
	t, ok := w.(*tcp)
	if !ok {
		return nil, fmt.Errorf("oob: listen: %w: %v is a way for a pair of programs; give tcp:HOST:PORT", ErrInvalid, w)
	}
	err = checkName("this program", cfg.Name)
	if cfg.Peer != "" {
		err = errors.Join(err, checkName("the clients", cfg.Peer))
	}
	if err != nil {
		return nil, fmt.Errorf("oob: listen: %w", err)
	}
	cfg.Role = Responder
	listener, err := net.Listen("tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("oob: listen on %v: %w", t, err)
	}
	return &Listener{cfg: cfg, listener: listener}, nil
}

// Addr is the address that clients connect to, as HOST:PORT.
func (l *Listener) Addr() string {
	if l.opened("") != nil {
		return ""
	}
	return l.listener.Addr().String()
}

// opened fails for a Listener that Listen did not make.
func (l *Listener) opened(op string) error {
	if l == nil || l.listener == nil {
		return fmt.Errorf("oob: %s: %w: the listener was not made by Listen", op, ErrInvalid)
	}
	return nil
}

// Serve exchanges with every client that comes from now on, until Close: each gets what
// the offer says, with connections of its own, as in Peer.Exchange. f is called for it
// on the engine's goroutine, with its name and what it offers, before anything is reported
// of its connections and before any message of it: f is where to set their user data. A
// connection of a client that fails is closed, after the callbacks that report it, so that
// its place is free for the next one.
//
// With an error, f turns the client away: its connections are closed, and its exchange
// fails with ErrRejected and the text of the error, of which it gets 1,000 bytes. So does
// that of a client whose offer cannot be taken, because of Config.Expect or of what the
// connections do not agree on. Who is no client at all is rejected. The reasons are logged.
// While the context has no connection left (rdma.Config.MaxConnections), or is not Starting
// or Running, clients try again until it has, or is.
//
// Serve does not block, and is legal once, in any state of the context (ErrInUse). It
// fails with pe.ErrNotConnected where the context has no engine, and with ErrClosed.
func (l *Listener) Serve(r *rdma.Context, offer Offer, f func(client string, a *Answer) error) error {
	if err := l.opened("serve"); err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("oob: serve on %v: %w: no context is given", l.Addr(), ErrInvalid)
	}
	if r.Engine() == nil {
		return fmt.Errorf("oob: serve on %v: %w", l.Addr(), pe.ErrNotConnected)
	}
	if f == nil {
		return fmt.Errorf("oob: serve on %v: %w: no function for its clients is given", l.Addr(), ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return fmt.Errorf("oob: serve: the listener is %w", ErrClosed)
	case l.guests != nil:
		return fmt.Errorf("oob: serve on %v: %w: a Listener serves one context", l.Addr(), ErrInUse)
	}
	guests := welcome(l.listener, func(err error) bool {
		l.cfg.Log.Warn().Err(err).Msg("no client can connect")
		return true
	})
	l.guests = guests
	l.beside.Go(func() {
		for {
			select {
			case g := <-guests.found:
				l.introduce(r, offer, g, f)
			case <-guests.done:
				return
			}
		}
	})
	return nil
}

// introduce has a client welcomed on the engine's goroutine, if it is one.
func (l *Listener) introduce(r *rdma.Context, offer Offer, g guest, f func(client string, a *Answer) error) {
	ends := Ends{Name: l.cfg.Name, Peer: l.cfg.Peer, Role: Responder}
	if ends.Peer == "" {
		ends.Peer = g.said.From
	}
	err := g.err
	switch {
	case err != nil:
	case checkName("", g.said.From) != nil || g.said.From != ends.Peer || g.said.To != ends.Name:
		err = notFrom(ends, g.said.From, g.said.To)
	case g.said.Responder:
		err = sameRole(ends)
	default:
		cfg := l.cfg
		cfg.Peer = ends.Peer
		x := &exchange{peer: &Peer{cfg: cfg, ends: ends, way: &tcp{address: l.Addr()}}, r: r}
		if r.Engine().Do(func() { l.welcome(x, offer, g, f) }) != nil {
			_ = g.conn.Close()
		}
		return
	}
	if g.err == nil {
		l.reply(g, ends, nil, nil)
	} else {
		_ = g.conn.Close()
	}
	l.rejected(g, err)
}

func (l *Listener) rejected(g guest, err error) {
	l.cfg.Log.Warn().Err(err).Msgf("a connection from %v was rejected", g.conn.RemoteAddr())
}

// welcome makes the connections with a client, or turns it away. It runs on the engine's
// goroutine.
func (l *Listener) welcome(x *exchange, offer Offer, g guest, f func(client string, a *Answer) error) {
	answered, taken := false, false
	defer func() {
		if !answered { // f may have panicked
			_ = g.conn.Close()
		}
	}()
	ours, err := x.export(offer)
	if err != nil { // the client tries again
		l.rejected(g, errors.Join(err, x.closeConnections()))
		return
	}
	client := fmt.Sprintf("%s from %v", g.said.From, g.conn.RemoteAddr())
	a, err := x.accept(g.said.Body)
	if err == nil {
		x.follow(a, l.changed(client, &taken), nil)
		err = f(g.said.From, a)
	}
	answered, taken = true, err == nil
	if err != nil {
		l.reply(g, x.peer.ends, nil, err)
		l.rejected(g, errors.Join(err, x.closeConnections()))
		return
	}
	l.cfg.Log.Info().Msg("client " + client)
	l.reply(g, x.peer.ends, ours, nil)
}

// changed returns what follows the connections of a client: it closes those that have
// failed, and logs the first end of one, if the client was taken.
func (l *Listener) changed(client string, taken *bool) func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	return func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Failed:
			if *taken {
				l.cfg.Log.Warn().Err(err).Msgf("lost client %s", client)
			}
			_ = conn.Close() // on the engine's goroutine it does not fail
		case state != rdma.Closed:
			return
		case *taken:
			l.cfg.Log.Info().Msgf("no longer connected with client %s", client)
		}
		*taken = false
	}
}

// maxRefusal is how many bytes of the reason a client gets that is turned away.
const maxRefusal = 1000

// reply gives a client our bundle, why it is turned away, or nothing but our name, beside
// the engine.
func (l *Listener) reply(g guest, ends Ends, ours []byte, refusal error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = g.conn.Close()
		return
	}
	fr := frame.Frame{From: ends.Name, To: ends.Peer, Responder: true, Body: ours}
	if refusal != nil {
		text := refusal.Error()
		fr.Outcome, fr.Body = frame.Failed, []byte(text[:min(len(text), maxRefusal)])
	}
	l.beside.Go(func() {
		defer func() { _ = g.conn.Close() }()
		if b, err := fr.Encode(); err == nil {
			_ = g.conn.SetDeadline(time.Now().Add(helloTimeout))
			_, _ = g.conn.Write(b) // a client that has gone never connects
		}
	})
}

// Close stops listening, and rejects the clients that are introducing themselves. The
// connections that were made go on. Call it when the engine no longer runs, or from
// another goroutine. Closing again only waits for a Close that is under way.
func (l *Listener) Close() (err error) {
	if err := l.opened("close a listener"); err != nil {
		return err
	}
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		guests := l.guests
		l.mu.Unlock()
		if guests != nil {
			err = guests.close()
		} else {
			err = l.listener.Close()
		}
		l.beside.Wait()
	})
	return err
}
