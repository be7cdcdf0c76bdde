package oob

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// answerer handles the requests to a listener of the connection manager, and groups them by
// exchange. It belongs to the engine's goroutine.
type answerer struct {
	r           *rdma.Connections
	connections int // of each exchange
	ends        func(requester string) Ends
	// admit answers the requests of an exchange, when all have arrived and are from the right
	// program.
	admit func(*requests)
	// outcome takes the report of a requester, and returns whether it was expected.
	outcome func(*privateData) bool
	// rejected is called for requests that are rejected, mustWait for those that must be repeated.
	rejected func(from netip.AddrPort, err error)
	mustWait func(err error)

	listener *rdma.Listener
	pending  []*requests // incomplete exchanges, the oldest first
	refused  cmToken     // of the last request that was refused before its exchange was complete
}

// requests are the requests of one exchange.
type requests struct {
	token cmToken
	offer *descriptor.Bundle
	list  []*rdma.ConnectRequest // nil: has not arrived
	conns []*rdma.Connection     // set by prepare
	// established: the requester has confirmed one connection, so it has all replies.
	established bool
}

// open starts to listen for requests.
func (a *answerer) open(w *cm, await int) (err error) {
	a.pending = nil
	a.listener, err = w.listen(a.r, rdma.ListenConfig{
		OnRequest: a.request, Await: await, Backlog: maxPending * max(16, a.connections),
	})
	return err
}

// request handles one request.
func (a *answerer) request(q *rdma.ConnectRequest) {
	d, err := decodePrivateData(q.PrivateData())
	switch {
	case err != nil:
	case d.kind == cmOutcome && a.outcome(d):
		_ = q.Reject(nil)
		return
	case d.kind != cmRequest:
		err = d.unexpected()
	default:
		ends := a.ends(d.offer.From)
		if checkName("", d.offer.From) == nil && d.offer.From == ends.Peer && d.to == nameSum(ends.Name) {
			err = a.collect(q, d)
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

// collect adds a request to its exchange, and admits the exchange if it is complete.
func (a *answerer) collect(q *rdma.ConnectRequest, d *privateData) error {
	switch {
	case int(d.count) != a.connections:
		return differentNumber(d.offer.From, int(d.count), a.connections)
	case d.index >= d.count:
		return fmt.Errorf("%w: the request is for connection %d of %d", descriptor.ErrFormat, d.index, d.count)
	}
	d.offer.To = a.ends(d.offer.From).Name
	i := slices.IndexFunc(a.pending, func(r *requests) bool { return r.token == d.token })
	if i < 0 {
		if i = len(a.pending); i == maxPending {
			a.drop(0)
			i--
		}
		a.pending = append(a.pending, &requests{token: d.token, list: make([]*rdma.ConnectRequest, d.count)})
	}
	r := a.pending[i]
	if before := r.list[d.index]; before != nil {
		_ = before.Reject(nil) // the requester has abandoned it
	}
	r.list[d.index], r.offer = q, &d.offer
	if slices.ContainsFunc(r.list, func(q *rdma.ConnectRequest) bool { return q == nil || q.Err() != nil }) {
		return nil
	}
	a.pending = slices.Delete(a.pending, i, i+1)
	a.admit(r)
	return nil
}

// drop rejects a pending exchange, to make room for another.
func (a *answerer) drop(i int) {
	a.pending[i].reject(rejection(cmBusy, errors.New("the responder has too many pending requests")))
	a.pending = slices.Delete(a.pending, i, i+1)
}

func (r *requests) reject(data []byte) {
	for _, q := range r.list {
		if q != nil {
			_ = q.Reject(data) // fails if the requester has given up
		}
	}
}

// ended reports whether all connections have ended.
func (r *requests) ended() bool {
	return !slices.ContainsFunc(r.conns, func(conn *rdma.Connection) bool { return conn.State() == rdma.Connecting })
}

func (r *requests) from() netip.AddrPort { return r.list[0].RemoteAddr() }

// rejectForError rejects the requests of an exchange. After a temporary error the requester tries
// again.
func (a *answerer) rejectForError(r *requests, err error) {
	switch {
	case isTemporary(err):
		a.mustWait(err)
		r.reject(rejection(cmBusy, err))
	case errors.Is(err, rdma.ErrNotReady): // the requester has given up
		r.reject(nil)
	default:
		a.rejectForGood(r, err)
	}
}

// rejectForGood rejects the requests of an exchange for good.
func (a *answerer) rejectForGood(r *requests, err error) {
	r.reject(rejection(cmRefused, err))
	a.rejected(r.from(), err)
}

// isTemporary reports whether an error is temporary.
func isTemporary(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, rdma.ErrFull) || errors.Is(err, pe.ErrBadState)
}

// prepare makes the connections.
func (a *answerer) prepare(r *requests) error {
	if n, most := len(a.r.List()), a.r.Config().MaxConnections; n+len(r.list) > most {
		return fmt.Errorf("%w: %d of %d connections are in use", rdma.ErrFull, n, most)
	}
	for _, q := range r.list {
		conn, err := q.Prepare()
		if err != nil {
			return err
		}
		r.conns = append(r.conns, conn)
	}
	return nil
}

func (r *requests) close() {
	for _, conn := range r.conns {
		_ = conn.Close() // on the engine's goroutine it does not fail
	}
}

// accept accepts the requests of an exchange, or rejects them and closes its connections.
func (a *answerer) accept(r *requests, cfg rdma.AcceptConfig) error {
	for _, q := range r.list {
		if _, err := q.Accept(cfg); err != nil {
			r.close()
			a.rejectForError(r, err)
			return err
		}
	}
	return nil
}

// confirmTimeout is how long a requester may take to confirm an acceptance.
var confirmTimeout = helloTimeout

// listen accepts the requests of the requester, and later its report.
func (x *exchange) listen(w *cm, d *privateData) (wait func(ctx context.Context) error, err error) {
	d.kind = cmReply
	reply, err := d.encodeWithinLimit()
	if err != nil {
		return nil, err
	}
	var confirmed *cmToken   // the requester's token, once it has confirmed
	var accepted []*requests // accepted, not established
	rejections := 0
	a := &answerer{r: x.connections, connections: int(d.count)}
	a.ends = func(string) Ends { return x.peer.ends }
	a.mustWait = func(err error) { x.peer.cfg.Log.Warn().Err(err).Msg("a requester must wait") }
	a.rejected = func(from netip.AddrPort, err error) {
		if rejections++; rejections <= maxRejections {
			x.peer.ends.Note(fmt.Sprintf("a connection from %v to %v was rejected: %v", from, w, err))
		}
	}
	a.outcome = func(d *privateData) bool {
		if confirmed == nil || subtle.ConstantTimeCompare(confirmed[:], d.token[:]) == 0 {
			return false
		}
		w.takeReport(d.ok)
		return true
	}
	a.admit = func(r *requests) {
		if x.call.ended {
			a.rejectForError(r, errBusy)
			return
		}
		answer, err := x.importOffer(r.offer, 0)
		if err != nil {
			a.rejectForError(r, err)
			x.end(nil, err)
			return
		}
		closeImports(answer.Maps, answer.Events) // this only checked that the import works
		if err = a.prepare(r); err != nil {
			a.rejectForError(r, err)
			return
		}
		// A request proves nothing: the requester may have ended, or be another program. The exchange
		// ends when a requester has confirmed.
		cfg := rdma.AcceptConfig{PrivateData: reply, OnEstablished: func(*rdma.Connection) {
			if r.established || x.call.ended {
				return
			}
			r.established = true
			confirmed, x.conns = &r.token, r.conns // if the exchange fails, end closes x.conns
			answer, err := x.importOffer(r.offer, 0)
			if err == nil {
				answer.Connections = r.conns
			}
			x.end(answer, err)
		}}
		if a.accept(r, cfg) != nil {
			return
		}
		accepted = append(slices.DeleteFunc(accepted, (*requests).ended), r)
		engine := x.r.Engine()
		host.Of(x.r.Device()).AfterFunc(confirmTimeout, func() {
			_ = engine.Do(func() {
				if !r.established {
					r.close()
				}
			})
		})
	}
	if err := a.open(w, int(d.count)); err != nil {
		return nil, err
	}
	x.onEnd = func(err error) error {
		for _, r := range accepted {
			if !r.established {
				r.close()
			}
		}
		if err != nil {
			_ = a.listener.Close() // on the engine's goroutine it does not fail
		}
		return err
	}
	return func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, nil
}
