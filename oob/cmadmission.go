package oob

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// admission answers the connection requests that come to a Peer or a Listener, by exchange. It
// belongs to the engine's goroutine.
type admission struct {
	r           *rdma.Connections
	connections int // of each exchange

	// exchange makes the exchange with a requester of this name.
	exchange func(requester string) *exchange
	// reply makes the private data of the acceptances.
	reply func(x *exchange) ([]byte, error)
	// unusable is called for an offer that this program cannot use. Nil: only its requester has to
	// know.
	unusable func(err error)
	// admit is called when the connections are prepared. If it returns an error, the requests
	// are rejected for good. Nil: all are admitted.
	admit func(e *cmExchange) error
	// accepted is called when the requests were accepted.
	accepted func(x *exchange, e *cmExchange)
	// confirmed is called when the requester has confirmed the first connection of an exchange,
	// so it has all replies. Nil: the program has the connections already.
	confirmed func(e *cmExchange)
	// rejected is called for requests that are rejected, mustWait for those that must be repeated.
	rejected func(from netip.AddrPort, err error)
	mustWait func(err error)

	listener *rdma.Listener
	pending  []*cmExchange // incomplete, the oldest first
	refused  cmToken       // of the last request that was refused before its exchange was complete
}

// cmExchange is an exchange as its requests come.
type cmExchange struct {
	token    cmToken
	offer    *descriptor.Bundle
	requests []*rdma.ConnectRequest // nil: has not arrived
	conns    []*rdma.Connection     // set by prepare
	answer   *Answer
	// confirmed: the requester has confirmed a connection.
	confirmed bool
}

// open starts to listen for requests.
func (a *admission) open(w *cm, await int) (err error) {
	a.pending = nil
	a.listener, err = w.listen(a.r, rdma.ListenConfig{
		OnRequest: a.request, Await: await, Backlog: maxPending * max(16, a.connections),
	})
	return err
}

// request handles one request.
func (a *admission) request(q *rdma.ConnectRequest) {
	d, err := decodePrivateData(q.PrivateData())
	switch {
	case err != nil:
	case d.kind != cmRequest:
		err = d.unexpected()
	default:
		ends := a.exchange(d.offer.From).peer.ends
		if checkName("", d.offer.From) == nil && d.offer.From == ends.Peer && d.to == nameSum(ends.Name) {
			d.offer.To = ends.Name
			err = a.add(q, d)
			break
		}
		to := ends.Name
		if d.to != nameSum(to) {
			to = "another" // the request carries only a checksum of the name
		}
		_ = q.Reject(wrongNames(ends))
		a.rejected(q.RemoteAddr(), notFrom(ends, d.offer.From, to))
		return
	}
	if err != nil {
		_ = q.Reject(rejection(cmRefused, err))
		if d == nil || d.kind != cmRequest || d.token != a.refused { // once per exchange
			a.rejected(q.RemoteAddr(), err)
		}
		if d != nil {
			a.refused = d.token
		}
	}
}

// add adds a request to its exchange, and accepts the exchange if it is complete.
func (a *admission) add(q *rdma.ConnectRequest, d *privateData) error {
	switch {
	case int(d.count) != a.connections:
		return differentNumber(d.offer.From, int(d.count), a.connections)
	case d.index >= d.count:
		return fmt.Errorf("%w: the request is for connection %d of %d", descriptor.ErrFormat, d.index, d.count)
	}
	i := slices.IndexFunc(a.pending, func(e *cmExchange) bool { return e.token == d.token })
	if i < 0 {
		if len(a.pending) == maxPending {
			a.pending[0].reject(rejection(cmBusy, errors.New("the responder has too many pending requests")))
			a.pending = slices.Delete(a.pending, 0, 1)
		}
		i = len(a.pending)
		a.pending = append(a.pending, &cmExchange{token: d.token, requests: make([]*rdma.ConnectRequest, d.count)})
	}
	e := a.pending[i]
	if before := e.requests[d.index]; before != nil {
		_ = before.Reject(nil) // the requester has abandoned it
	}
	e.requests[d.index], e.offer = q, &d.offer
	if slices.ContainsFunc(e.requests, func(q *rdma.ConnectRequest) bool { return q == nil || q.Err() != nil }) {
		return nil
	}
	a.pending = slices.Delete(a.pending, i, i+1)
	a.accept(e)
	return nil
}

// accept accepts the requests of an exchange, or rejects them. It checks the offer before it makes
// connections, because the program gets reports about connections.
func (a *admission) accept(e *cmExchange) {
	x := a.exchange(e.offer.From)
	answer, err := x.importOffer(e.offer, 0)
	if err != nil {
		a.rejectForError(e, err)
		if a.unusable != nil {
			a.unusable(err)
		}
		return
	}
	e.answer = answer
	accepted := false
	defer func() {
		if !accepted { // also if the program's function has panicked
			e.close()
			e.reject(rejection(cmBusy, errBusy))
		}
	}()
	reply, err := a.reply(x)
	if err == nil {
		err = a.prepare(e)
	}
	if err != nil {
		a.rejectForError(e, err)
		return
	}
	answer.Connections, x.conns = slices.Clone(e.conns), e.conns
	if a.admit != nil {
		if err := a.admit(e); err != nil {
			a.rejectForGood(e, err)
			return
		}
	}
	cfg := rdma.AcceptConfig{PrivateData: reply}
	if a.confirmed != nil {
		cfg.OnEstablished = func(*rdma.Connection) {
			if !e.confirmed {
				e.confirmed = true
				a.confirmed(e)
			}
		}
	}
	for _, q := range e.requests {
		if _, err := q.Accept(cfg); err != nil {
			a.rejectForError(e, err)
			return
		}
	}
	accepted = true
	a.accepted(x, e)
}

// prepare makes the connections.
func (a *admission) prepare(e *cmExchange) error {
	if n, most := len(a.r.List()), a.r.Config().MaxConnections; n+len(e.requests) > most {
		return fmt.Errorf("%w: %d of %d connections are in use", rdma.ErrFull, n, most)
	}
	for _, q := range e.requests {
		conn, err := q.Prepare()
		if err != nil {
			return err
		}
		e.conns = append(e.conns, conn)
	}
	return nil
}

// rejectForError rejects the requests of an exchange. After a temporary error the requester tries
// again.
func (a *admission) rejectForError(e *cmExchange, err error) {
	switch {
	case isTemporary(err):
		a.mustWait(err)
		e.reject(rejection(cmBusy, err))
	case errors.Is(err, rdma.ErrNotReady): // the requester has given up
		e.reject(nil)
	default:
		a.rejectForGood(e, err)
	}
}

// rejectForGood rejects the requests of an exchange for good.
func (a *admission) rejectForGood(e *cmExchange, err error) {
	e.reject(rejection(cmRefused, err))
	a.rejected(e.from(), err)
}

// isTemporary reports whether an error is temporary.
func isTemporary(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, rdma.ErrFull) || errors.Is(err, pe.ErrBadState)
}

func (e *cmExchange) reject(data []byte) {
	for _, q := range e.requests {
		if q != nil {
			_ = q.Reject(data) // fails if it was answered, or the requester has given up
		}
	}
}

// close closes the connections and what was imported.
func (e *cmExchange) close() {
	for _, conn := range e.conns {
		_ = conn.Close() // on the engine's goroutine it does not fail
	}
	closeImports(e.answer.Maps, e.answer.Events)
}

// ended reports whether all connections have ended.
func (e *cmExchange) ended() bool {
	return !slices.ContainsFunc(e.conns, func(conn *rdma.Connection) bool { return conn.State() == rdma.Connecting })
}

func (e *cmExchange) from() netip.AddrPort { return e.requests[0].RemoteAddr() }

// confirmTimeout is how long a requester may take to confirm an acceptance.
var confirmTimeout = helloTimeout

// listen accepts the requests of the requester. A request proves nothing: the requester may have
// ended, or be another program. So the exchange ends when a requester has confirmed.
func (x *exchange) listen(w *cm, d *privateData) (wait func(ctx context.Context) error, err error) {
	d.kind = cmReply
	reply, err := d.encodeWithinLimit()
	if err != nil {
		return nil, err
	}
	var accepted []*cmExchange
	note := x.peer.ends.noteChanges()
	a := &admission{r: x.connections, connections: int(d.count)}
	a.exchange = func(string) *exchange { return x }
	a.reply = func(*exchange) ([]byte, error) {
		if x.call.ended {
			return nil, errBusy
		}
		return reply, nil
	}
	a.mustWait = func(err error) { x.peer.cfg.Log.Warn().Err(err).Msg("a requester must wait") }
	a.rejected = func(from netip.AddrPort, err error) {
		note(fmt.Sprintf("a connection from %v to %v was rejected: %v", from, w, err))
	}
	a.unusable = func(err error) { x.end(nil, err) }
	a.confirmed = func(e *cmExchange) {
		if !x.call.ended {
			x.conns = e.conns
			x.end(e.answer, nil)
		}
	}
	closeUnconfirmed := func(list ...*cmExchange) {
		for _, e := range list {
			if !e.confirmed {
				e.close()
			}
		}
	}
	a.accepted = func(_ *exchange, e *cmExchange) {
		accepted = append(slices.DeleteFunc(accepted, (*cmExchange).ended), e)
		engine := x.r.Engine()
		host.Of(x.r.Device()).AfterFunc(confirmTimeout, func() { _ = engine.Do(func() { closeUnconfirmed(e) }) })
	}
	if err := a.open(w, int(d.count)); err != nil {
		return nil, err
	}
	x.onEnd = func(err error) error {
		closeUnconfirmed(accepted...)
		if err != nil {
			_ = a.listener.Close() // on the engine's goroutine it does not fail
		}
		return err
	}
	return untilDone, nil
}
