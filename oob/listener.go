package oob

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Listener is the server's end of exchanges with any number of clients. A client opens a Peer as
// a Requester, with the same way as the server, and exchanges. Several clients may have the
// same name.
type Listener struct {
	cfg      Config
	listener net.Listener // by TCP
	cm       *cmListener  // by connection manager
	closing  sync.Once

	waitLogged bool // it was logged that clients have to wait; belongs to the engine's goroutine

	mu         sync.Mutex
	served     bool
	acceptor   *acceptor // by TCP; nil before Serve
	closed     bool
	goroutines sync.WaitGroup
}

// Listen listens for clients at tcp:HOST:PORT or cm:HOST:PORT, as in Parse; with port 0 the
// system chooses one, see Addr. Other ways are for pairs, and fail with an error that matches
// ErrInvalid. Clients that connect before Serve wait.
//
// By connection manager the context of Serve listens, while it is Starting or Running; if it
// cannot listen, it fails.
//
// cfg.Name is the server's name, and cfg.Peer that of the clients; if empty, any name is
// accepted. Expect is what each client must offer. Role and Notify are ignored. Log receives
// which clients connected and left (info), and which were lost or rejected, and why (warn).
func Listen(way string, cfg Config) (*Listener, error) {
	w, err := Parse(way)
	if err != nil {
		return nil, fmt.Errorf("oob: listen: %w", err)
	}
	if w.address == "" {
		return nil, fmt.Errorf("oob: listen: %w: %v serves one pair of programs only; give tcp:HOST:PORT or cm:HOST:PORT", ErrInvalid, w)
	}
	err = checkName("this program", cfg.Name)
	if cfg.Peer != "" {
		err = errors.Join(err, checkName("the clients", cfg.Peer))
	}
	if err != nil {
		return nil, fmt.Errorf("oob: listen: %w", err)
	}
	cfg.Role = Responder
	l := &Listener{cfg: cfg}
	if w.cm != nil {
		l.cm = &cmListener{l: l, way: w.cm}
		err = w.check(Ends{Role: Responder})
	} else {
		l.listener, err = net.Listen("tcp", w.address)
	}
	if err != nil {
		return nil, fmt.Errorf("oob: listen on %v: %w", w, err)
	}
	return l, nil
}

// Addr is the address that clients connect to, as HOST:PORT. By connection manager it is the
// address given to Listen until the context listens.
func (l *Listener) Addr() string {
	if l.cm != nil {
		return l.cm.addr()
	}
	return l.listener.Addr().String()
}

// Serve exchanges with every client until Close. Each client gets the offer, with connections
// of its own, as in Peer.Exchange. f is called on the engine's goroutine, with the client's name
// and its offer, before any state of its connections is reported and before any message
// arrives: f is the place to set their user data. A client's connection that fails is closed,
// after the callbacks that report it, so that the next client can use its place.
//
// If f returns an error, the client is rejected: its connections are closed, and its exchange
// fails with ErrRejected and the first 1,000 bytes of the error's text (143 by connection
// manager). A client is rejected in the same way if its offer does not match (Config.Expect), or
// if its connections differ in number or cannot be connected. So is every client while something
// of this offer cannot be exported, such as a closed map. Connections of programs that are not
// clients are closed. The reasons are logged. While the context has no connection left
// (rdma.Config.MaxConnections), or is not Starting or Running, clients try again; that is logged
// once.
//
// The connections of a client can be closed without a call of f, for example if the addresses
// of the two ends do not match (one IPv4, one IPv6). rdma.Connections.OnConnection reports them
// Closed too, with nil for their user data: use the form x, ok := conn.UserData().(T).
//
// Serve does not block. It is legal in any state of the context, once (otherwise ErrInUse). It
// fails with pe.ErrNotConnected if the context has no engine, with ErrInvalid if the offer has
// no connections or more than rdma.Config.MaxConnections, and with ErrClosed.
func (l *Listener) Serve(r rdma.Context, offer Offer, f func(client string, a *Answer) error) error {
	if !isContext(r) {
		return fmt.Errorf("oob: serve on %v: %w: no context is given", l.Addr(), ErrInvalid)
	}
	if r.Engine() == nil {
		return fmt.Errorf("oob: serve on %v: %w", l.Addr(), pe.ErrNotConnected)
	}
	if f == nil {
		return fmt.Errorf("oob: serve on %v: %w: the function for clients is nil", l.Addr(), ErrInvalid)
	}
	connections, _ := r.(*rdma.Connections)
	if connections != nil {
		if most := connections.Config().MaxConnections; offer.Connections < 0 || offer.connections() > most {
			return fmt.Errorf("oob: serve on %v: %w: Offer.Connections is %d; give 1 to %d (rdma.Config.MaxConnections)",
				l.Addr(), ErrInvalid, offer.Connections, most)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return fmt.Errorf("oob: serve: the listener is %w", ErrClosed)
	case l.served:
		return fmt.Errorf("oob: serve on %v: %w: a Listener serves one context", l.Addr(), ErrInUse)
	}
	l.served = true
	if l.cm != nil {
		return l.cm.serve(connections, offer, f)
	}
	acceptor := acceptClients(l.listener, func(err error) bool {
		l.cfg.Log.Warn().Err(err).Msg("no client can connect")
		return true
	})
	l.acceptor = acceptor
	l.goroutines.Go(func() {
		for {
			select {
			case c := <-acceptor.arrived:
				l.checkClient(r, offer, c, f)
			case <-acceptor.done:
				return
			}
		}
	})
	return nil
}

// checkClient admits a client on the engine's goroutine. It rejects other programs.
func (l *Listener) checkClient(r rdma.Context, offer Offer, c clientConn, f func(client string, a *Answer) error) {
	if c.err != nil {
		_ = c.conn.Close()
		l.rejected(c.conn.RemoteAddr(), c.err)
		return
	}
	p := l.peer(c.hello.From)
	err := c.check(p.ends)
	if checkName("", c.hello.From) != nil {
		err = notFrom(p.ends, c.hello.From, c.hello.To)
	}
	if err != nil {
		l.reply(c, p.ends, nil, nil)
		l.rejected(c.conn.RemoteAddr(), err)
		return
	}
	engine := r.Engine() // nil once the context is closed
	if engine == nil || engine.Do(func() { l.admit(newExchange(p, r), offer, c, f) }) != nil {
		_ = c.conn.Close()
	}
}

// peer makes the Peer that checks a client's offer.
func (l *Listener) peer(client string) *Peer {
	cfg := l.cfg
	if cfg.Peer == "" {
		cfg.Peer = client
	}
	return &Peer{cfg: cfg, ends: Ends{Name: cfg.Name, Peer: cfg.Peer, Role: Responder}}
}

func (l *Listener) rejected(from fmt.Stringer, err error) {
	l.cfg.Log.Warn().Err(err).Stringer("address", from).Msg("a connection was rejected")
}

// admit makes the connections with a client, or rejects it. It runs on the engine's
// goroutine. It checks the offer before it makes connections, because the program gets
// reports about connections.
func (l *Listener) admit(x *exchange, offer Offer, c clientConn, f func(client string, a *Answer) error) {
	replied := false
	defer func() {
		if !replied { // the client has to try again, the Listener is closed, or f panicked
			_ = c.conn.Close()
			_ = x.closeConnections() // on the engine's goroutine it does not fail
		}
	}()
	if l.isClosed() {
		return
	}
	reject := func(err error) {
		_ = x.closeConnections()
		replied = l.reply(c, x.peer.ends, nil, err)
		l.rejected(c.conn.RemoteAddr(), err)
	}
	var a *Answer
	b, err := descriptor.DecodeBundle(c.hello.Body)
	if err == nil {
		a, err = x.importOffer(b, x.connectionsOf(&offer))
	}
	if err != nil {
		reject(err)
		return
	}
	ours, err := x.export(offer)
	if err != nil {
		closeImports(a.Maps, a.Events)
		if isTemporary(err) {
			l.logMustWait(err)
			return
		}
		reject(err)
		return
	}
	l.waitLogged = false
	if err := x.connect(a, b); err != nil {
		reject(err)
		return
	}
	if err := f(c.hello.From, a); err != nil {
		x.watchUntilClosed(a, nil, nil)
		reject(err)
		return
	}
	l.admitted(x, a, c.hello.From, c.conn.RemoteAddr())
	replied = l.reply(c, x.peer.ends, ours, nil)
}

// logMustWait logs that clients have to wait, once until the next client is admitted. It runs on
// the engine's goroutine.
func (l *Listener) logMustWait(err error) {
	if !l.waitLogged {
		l.waitLogged = true
		l.cfg.Log.Warn().Err(err).Msg("clients must wait")
	}
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// admitted follows the connections of a client: it closes those that have failed, and logs the first
// that ends.
func (l *Listener) admitted(x *exchange, a *Answer, name string, from fmt.Stringer) {
	log := l.cfg.Log.With().Str("client", name).Stringer("address", from).Logger()
	log.Info().Msg("a client has connected")
	ended := false
	x.watchUntilClosed(a, func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if state != rdma.Failed && state != rdma.Closed {
			return
		}
		switch first := !ended; {
		case state == rdma.Failed:
			if first {
				log.Warn().Err(err).Msg("a client was lost")
			}
			_ = conn.Close() // on the engine's goroutine it does not fail
		case first:
			log.Info().Msg("a client has disconnected")
		}
		ended = true
	}, nil)
}

// maxRefusal is the largest length of the reason that a rejected client gets, in bytes.
const maxRefusal = 1000

// reply sends a client our bundle, the reason of a rejection, or only our name, on a goroutine
// of its own. Once the Listener is closed, it only closes the client's connection, and returns
// false.
func (l *Listener) reply(c clientConn, ends Ends, ours []byte, refusal error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.conn.Close()
		return false
	}
	fr := frame.Frame{From: ends.Name, To: ends.Peer, Responder: true, Body: ours}
	if refusal != nil {
		text := refusal.Error()
		fr.Outcome, fr.Body = frame.Failed, []byte(text[:min(len(text), maxRefusal)])
	}
	l.goroutines.Go(func() {
		defer func() { _ = c.conn.Close() }()
		if b, err := fr.Encode(); err == nil {
			_ = c.conn.SetDeadline(time.Now().Add(helloTimeout))
			_, _ = c.conn.Write(b) // if the client has ended, its connections never become Ready
		}
	})
	return true
}

// Close stops listening, and rejects clients that have not completed their exchange. Existing
// connections stay open. Call it when the engine no longer runs, or from another goroutine.
// Closing again only waits for a Close that is under way.
func (l *Listener) Close() (err error) {
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		acceptor := l.acceptor
		l.mu.Unlock()
		if l.cm != nil {
			err = l.cm.close()
		} else if acceptor != nil {
			err = acceptor.close()
		} else {
			err = l.listener.Close()
		}
		l.goroutines.Wait()
	})
	return err
}
