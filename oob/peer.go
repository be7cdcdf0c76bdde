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

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Config names the two programs.
type Config struct {
	// Name is the name of this program, and Peer that of the other program. They must differ,
	// and consist of letters, digits and . _ - +.
	Name, Peer string
	// Role is the role of this program. Zero: Requester.
	Role Role
	// Expect is exactly what the peer must offer besides connections; anything else
	// is an error that matches ErrWrongPeer. Nil: any offer is accepted.
	Expect *Expect
	// Notify takes lines for the person who runs the program: what to paste, or that the
	// wrong program was started. It may be called from any goroutine, at most 64 times in
	// one wait. Nil: lines go to standard error, after the program's name.
	Notify func(line string)
	// Await, for Listen by connection manager, is how many connections of clients must have
	// been Ready before a context that is Starting becomes Running
	// (rdma.ListenConfig.Await). Zero: none.
	Await int
	// Log receives what the Peer waits for (info). The zero value is silent.
	Log zerolog.Logger
}

// Expect is how many memory maps and sync events a peer must offer.
type Expect struct {
	Maps   int // memory maps
	Events int // sync events
}

// Offer is what a program gives to its peer. The zero value is one connection. The connection
// manager carries less: see CM.
type Offer struct {
	// Connections is how many connections to make with the peer, which must give the
	// same number. The first is connected to the peer's first, and so on. Zero: 1.
	// Negative: none, for Peer.Exchange only. A context of datagrams makes none: it
	// offers its endpoint.
	Connections int
	// Maps are memory maps that the peer may reach, on the device of the context and
	// in its protection domain.
	Maps []*mmap.Map
	// Events are sync events that the peer may reach.
	Events []*syncevent.Event
	// Data is bytes of the program's own, such as the size of its messages. Together with all
	// descriptors they must fit into descriptor.MaxPayload, less 2 KiB for the names
	// and what a Way adds.
	Data []byte
}

// connections returns how many connections are offered.
func (o *Offer) connections() int {
	if o.Connections == 0 {
		return 1
	}
	return max(o.Connections, 0)
}

// Answer is what the peer offers, imported.
type Answer struct {
	// Connections are this program's ends, in order. Tasks can be submitted. No message has
	// arrived, and no change of state was reported yet, except that by connection manager the
	// connections of a Peer were reported Connecting.
	Connections []*rdma.Connection
	// Peer is the endpoint of the other program, in a context of datagrams; otherwise nil.
	Peer *rdma.Peer
	// Maps are the peer's, in the order in which it offered them. The program does not
	// close them: they are closed when all connections of the exchange are Closed, after the
	// callbacks that report it, or, without connections, when the context is Idle. A
	// Failed connection becomes Closed after its Close.
	Maps []*mmap.Map
	// Events are the peer's in the same way.
	Events []*syncevent.Event
	// Data is the peer's own bytes; nil if there are none.
	Data []byte
}

// Peer is the other program of a pair. It is for one exchange. Connect, Exchange, Done and
// EndWith belong to the goroutine that drives the engine; Waiting and Close may be called
// from any.
type Peer struct {
	way    Way
	cfg    Config
	ends   Ends
	ctx    context.Context // of the functions that run on goroutines of their own
	cancel context.CancelCauseFunc

	outcomeTimeout time.Duration

	doneMu sync.Mutex // held in Way.Done

	// These belong to the engine's goroutine.
	conns       []*rdma.Connection // of the exchange
	doneCalled  bool               // a Done is waiting
	endsContext bool               // the waiting Done was called with nil
	reported    bool               // the peer has reported how it ended

	closing    sync.Once
	mu         sync.Mutex
	goroutines sync.WaitGroup
	closed     bool
	used       bool
	exchanged  rdma.Context // set once the exchange has succeeded
	exchanging rdma.Context // set once the exchange has begun
	waiting    string       // what the Peer waits for, or waited for when it gave up
	notes      string       // the notes of this wait
	noted      int          // the number of lines noted in this wait
}

// Open makes a Peer with the Way that a text names; see Parse. Its errors match ErrInvalid.
func Open(way string, cfg Config) (*Peer, error) {
	w, err := Parse(way)
	if err != nil {
		return nil, fmt.Errorf("oob: %w", err)
	}
	return New(w, cfg)
}

// New makes a Peer with any Way. It opens nothing yet. Its errors match ErrInvalid, or are
// those of resolving a host name (CM).
func New(way Way, cfg Config) (*Peer, error) {
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
	if err == nil {
		err = way.check(p.ends)
	}
	if err != nil {
		return nil, fmt.Errorf("oob: %w", err)
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Connect makes one connection with the peer: it is Exchange for the common case. The peer
// may reach maps. f gets the connection, and the first memory map that the peer offers, or
// nil. If f is nil, an error fails r.
func (p *Peer) Connect(r *rdma.Connections, f func(c *rdma.Connection, m *mmap.Map, err error), maps ...*mmap.Map) {
	if f == nil {
		f = func(_ *rdma.Connection, _ *mmap.Map, err error) { fail(r, err) }
	}
	p.Exchange(context.Background(), r, Offer{Maps: maps}, func(a *Answer, err error) {
		switch {
		case err != nil:
			f(nil, nil, err)
		case len(a.Maps) > 0:
			f(a.Connections[0], a.Maps[0], nil)
		default:
			f(a.Connections[0], nil, nil)
		}
	})
}

// Exchange exports the offer, sends it to the peer, waits for the peer's offer, imports that,
// and connects. It does not block: f is called later, once, on the engine's goroutine, inside
// Progress.
//
// It is legal in Starting and Running. Call it in the callback that reports Starting: the
// context then becomes Running only when all connections are Ready. A connection that fails
// before that fails the context.
//
// f gets an error when something cannot be exported or imported, when the Way fails, when ctx
// ends (the error matches context.Cause(ctx)), when the context stops (ErrFlushed), when the
// Peer is closed (ErrClosed), when the peer is another program or does not offer what
// Config.Expect says (ErrWrongPeer), and in a second exchange (ErrInUse). The exported
// connections are then closed. The program should stop the context, best with Fail(err), which
// ignores ErrFlushed of a context that has stopped. If r is nil or has no engine, f is called
// at once (ErrInvalid, pe.ErrNotConnected). If f is nil, r.Fail gets the error.
func (p *Peer) Exchange(ctx context.Context, r rdma.Context, offer Offer, f func(a *Answer, err error)) {
	if f == nil {
		f = func(_ *Answer, err error) { fail(r, err) }
	}
	if !isContext(r) {
		f(nil, fmt.Errorf("oob: exchange with %s: %w: no *rdma.Connections or *rdma.Datagrams is given", p.cfg.Peer, ErrInvalid))
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
	x.callback = f
	x.call = newCall(engine, r, func(err error) { x.end(nil, err) })
	start := p.way.start
	if w := p.way.cm; w != nil {
		start = w.start
	}
	if err := start(ctx, x, offer); err != nil {
		x.call.unwatch()                          // report err, even if the context stops first
		_ = engine.Do(func() { x.end(nil, err) }) // fails only once the engine is closed
	}
}

// isContext reports whether r is one of the two kinds of context, and not nil.
func isContext(r rdma.Context) bool {
	switch r := r.(type) {
	case *rdma.Connections:
		return r != nil
	case *rdma.Datagrams:
		return r != nil
	}
	return false
}

// fail calls r.Fail if r is a context.
func fail(r rdma.Context, err error) {
	if isContext(r) {
		r.Fail(err)
	}
}

// madeConnection reports whether the exchange made a connection.
func (p *Peer) madeConnection(conn *rdma.Connection) bool { return slices.Contains(p.conns, conn) }

// begun reports whether an exchange has begun.
func (p *Peer) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// begin records that the exchange begins.
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
// folder /tmp/x", followed by the notes of the wait. It is empty if the Peer waits for nothing.
// After a wait that failed or was given up, it still describes that wait.
func (p *Peer) Waiting() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting + p.notes
}

// String names the peer and the Way.
func (p *Peer) String() string { return fmt.Sprintf("%s, through %v", p.cfg.Peer, p.way) }

// waitFor records and logs what the Peer waits for. It replaces the previous entry.
func (p *Peer) waitFor(what string) {
	p.mu.Lock()
	p.waiting, p.notes, p.noted = what, "", 0
	p.mu.Unlock()
	p.cfg.Log.Info().Msg("waiting for " + what)
}

// waitEnded records that the wait for what has ended. An empty what ends any wait.
func (p *Peer) waitEnded(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what == "" || p.waiting == what {
		p.waiting, p.notes = "", ""
	}
}

const (
	// maxNotes is the largest length of the notes that Waiting returns, in bytes.
	maxNotes = 1000
	// maxNoteLines is how many lines are noted during one wait.
	maxNoteLines = 64
)

// note implements Ends.Note: it passes a line to Config.Notify, and keeps it for Waiting.
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
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", p.cfg.Name, text)
}

// Close ends what is under way, and removes what was created for the exchange. If this program
// is the requester and the exchange succeeded, Close reports to the peer whether the program
// succeeded: err is the program's error, such as the result of pe.Engine.Run; nil means
// success. (By connection manager, the connections have reported: see CM.) Call it when the
// engine no longer runs. Closing again only waits for a Close that is under way.
func (p *Peer) Close(err error) (result error) {
	p.closing.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.cancel(errPeerClosed)
		p.goroutines.Wait()
		if p.way.cm != nil {
			return // the connections have reported
		}
		if e := p.way.carrier.Close(err == nil); e != nil {
			result = fmt.Errorf("oob: end the exchange with %s through %v: %w", p.cfg.Peer, p.way, e)
		}
	})
	return result
}
