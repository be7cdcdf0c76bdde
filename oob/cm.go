package oob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// cm makes the connections of an exchange by the device's connection manager. Its private
// data carries the rest of the offer, and how the requester has ended.
type cm struct {
	address    string
	localAddrs []netip.Addr // addresses of the host that a responder listens on; none: all

	// These belong to the engine's goroutine.
	open   int             // connections of the exchange that are not Closed
	result error           // of the first connection whose report is not success
	done   func(err error) // of the Done that waits; nil: none
}

// CM exchanges by connection manager (rdma.Connections.Listen and Dial). The responder listens
// on HOST:PORT, an address of its device. The requester dials it, and may start first. If HOST
// is empty, or resolves only to loopback addresses, as localhost does, the responder listens on
// all addresses of its device. New and Listen resolve names.
//
// No other channel is needed: the offers travel in the private data of the connection request
// and of the reply. That is at most one memory map or sync event, and a few bytes of Data: in
// the request 37, less the length of the requester's name and 21 for a memory map; in the reply
// 68 or more. Larger offers fail with ErrInvalid. An exchange makes 1 to 255 connections.
//
// The device needs a connection manager, and the transport service must be RC
// (rdma.ErrNotSupported otherwise). One context listens on a port. A Starting context waits for
// the connections of a Peer.
//
// The requester's report travels in the private data with which its connections end, so it is
// that of its context, and the error of Peer.Close does not matter: failure if the context has an
// error, if the connection is Failed, or if the context is stopped because the engine is closed
// or the context of Run has ended. Peer.Done ends when all connections are Closed. Adapters
// send and show no private data then (librdmacm has no call for it). If either end is on
// one, Done returns nil when the requester has ended the connections, whatever the reason: its
// own error says whether it succeeded, and a killed requester is not told from others. Nor can
// a requester report on connections that the responder ends.
//
// Nothing is encrypted, and names are not passwords: use it only on trusted networks.
func CM(address string) (Way, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return Way{}, fmt.Errorf("cm:%s: %w: %w", address, ErrInvalid, err)
	}
	return Way{cm: &cm{address: address}, address: address}, nil
}

// resolve looks up the addresses to listen on.
func (w *cm) resolve(host string) (err error) {
	if host != "" {
		w.localAddrs, err = net.DefaultResolver.LookupNetIP(context.Background(), "ip", host)
	}
	return err
}

// listen listens on the address. Loopback addresses stand for all addresses of the device.
func (w *cm) listen(r *rdma.Connections, cfg rdma.ListenConfig) (l *rdma.Listener, err error) {
	_, port, _ := net.SplitHostPort(w.address)
	if !slices.ContainsFunc(w.localAddrs, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() }) {
		return r.Listen(net.JoinHostPort("", port), cfg)
	}
	for _, host := range w.localAddrs {
		if l, err = r.Listen(net.JoinHostPort(host.Unmap().String(), port), cfg); !errors.Is(err, ErrInvalid) {
			return l, err
		}
	}
	return nil, err // the device has none of the addresses
}

func (w *cm) String() string { return "cm:" + w.address }

// start starts an exchange.
func (w *cm) start(ctx context.Context, x *exchange, offer Offer) error {
	if x.connections == nil {
		return errNoConnections
	}
	n := offer.connections()
	if err := checkOffer(len(offer.Maps), len(offer.Events), n); err != nil {
		return err
	}
	b, err := x.bundle(offer)
	if err != nil {
		return err
	}
	begin := x.dial
	if x.peer.cfg.Role == Responder {
		begin = x.listen
	}
	d := &privateData{kind: cmRequest, count: uint8(n), to: nameSum(x.peer.cfg.Peer), offer: *b}
	host.Of(x.r.Device()).Random(d.token[:])
	wait, err := begin(w, d)
	if err != nil {
		return errors.Join(err, x.closeConnections())
	}
	w.open = n
	x.peer.waitFor(fmt.Sprintf("%s, through %v", x.peer.cfg.Peer, w))
	x.call.runAsync(x.peer, ctx, wait, func(err error) { x.end(nil, err) })
	return nil
}

var errNoConnections = fmt.Errorf("%w: a context of datagrams cannot exchange through the connection manager; use another way", ErrInvalid)

// untilDone waits until ctx ends.
func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// report returns the requester's report, for the private data with which a connection ends.
func (x *exchange) report(conn *rdma.Connection) []byte {
	engine := x.r.Engine()
	ok := conn.State() != rdma.Failed && x.r.Err() == nil && (engine == nil || !engine.Friends(friend.Package{}).Draining())
	return (&privateData{kind: cmReport, ok: ok}).encode()
}

// closed takes the report of a connection that is Closed for the given reason.
func (w *cm) closed(conn *rdma.Connection, reason error) {
	w.open--
	if w.result == nil {
		w.result = reportOf(conn.DisconnectData(), reason)
	}
	w.reported()
}

// reported ends the Done that waits, if the report is complete.
func (w *cm) reported() {
	if done := w.done; done != nil && (w.open == 0 || w.result != nil) {
		w.done = nil
		done(w.result)
	}
}

// reportOf decodes a report. There is no private data if the peer or this end is on an adapter, or if
// the peer's device has lost the connection.
func reportOf(data []byte, reason error) error {
	if isZero(data) {
		if errors.Is(reason, rdma.ErrPeerClosed) {
			return nil
		}
		return errors.New("the peer did not end the connection, and so could not report whether it succeeded")
	}
	d, err := decodePrivateData(data)
	switch {
	case err != nil:
		return fmt.Errorf("wrong report: %w", err)
	case d.kind != cmReport:
		return fmt.Errorf("wrong report: %w", d.unexpected())
	case !d.ok:
		return ErrPeerFailed
	}
	return nil
}

// noteInterval is how often a requester checks for a new reason why nobody answers.
const noteInterval = 2 * time.Second

// dialer is the requester's end of an exchange.
type dialer struct {
	x        *exchange
	way      *cm
	answered map[*rdma.Connection]bool
	reply    *descriptor.Bundle
}

// dial requests the connections. While they are pending, wait notes why nobody answers.
func (x *exchange) dial(w *cm, d *privateData) (wait func(ctx context.Context) error, err error) {
	a := &dialer{x: x, way: w, answered: make(map[*rdma.Connection]bool)}
	for ; d.index < d.count; d.index++ {
		request, err := d.encodeWithinLimit()
		if err != nil {
			return nil, err
		}
		conn, err := x.connections.Dial(w.address, rdma.DialConfig{
			PrivateData: request, Timeout: rdma.Forever, OnResponse: a.responded, OnReject: a.rejected, DisconnectData: x.report,
		})
		if err != nil {
			return nil, err
		}
		x.conns = append(x.conns, conn)
	}
	unwatch := x.connections.WatchConnections(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if (state == rdma.Failed || state == rdma.Closed) && slices.Contains(x.conns, conn) {
			if err == nil {
				err = rdma.ErrPeerClosed
			}
			x.end(nil, err)
		}
	})
	first := x.conns[0]
	x.onEnd = func(err error) error {
		unwatch()
		if last := first.DialError(); err != nil && last != nil {
			err = fmt.Errorf("%w; the last attempt: %w", err, last)
		}
		return err
	}
	return func(ctx context.Context) error {
		tick := make(chan struct{}, 1)
		timer := host.Of(x.r.Device()).AfterFunc(noteInterval, func() { tick <- struct{}{} })
		defer timer.Stop()
		note := x.peer.ends.noteChanges()
		for {
			select {
			case <-tick:
				timer.Reset(noteInterval)
				why := "no answer so far"
				if err := first.DialError(); err != nil {
					why = reason(err)
				}
				note(fmt.Sprintf("%s does not answer at %v yet, trying again: %s", x.peer.cfg.Peer, w, why))
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, nil
}

// reason returns the text of a dial error without the addresses of the attempt, which differ
// between attempts.
func reason(err error) string {
	var failure *verbs.CMError
	if errors.As(err, &failure) {
		if d, unknown := decodePrivateData(failure.PrivateData); unknown == nil && d.kind == cmBusy {
			return fmt.Sprintf("%v: %q", errBusy, d.text)
		}
		if failure.Err != nil {
			err = failure.Err
		}
	}
	return err.Error()
}

// responded handles the reply to one request. The connections are established when all replies
// have arrived. Until then none becomes Ready and no message arrives, because the program does
// not know the connections yet.
func (a *dialer) responded(conn *rdma.Connection) {
	x := a.x
	if x.call.ended {
		_ = conn.Established()
		return
	}
	d, err := decodePrivateData(conn.AcceptData())
	if err == nil && d.kind != cmReply {
		err = d.unexpected()
	}
	if err != nil {
		x.end(nil, fmt.Errorf("wrong answer at %v: %w", a.way, err))
		return
	}
	if conn == x.conns[0] {
		a.reply = &d.offer
	}
	if a.answered[conn] = true; len(a.answered) < len(x.conns) {
		return
	}
	a.reply.To = x.peer.cfg.Name // a reply does not carry it
	answer, err := x.importOffer(a.reply, 0)
	if err == nil {
		answer.Connections = x.conns
	}
	x.end(answer, err)
	if err != nil {
		return
	}
	for _, conn := range x.peer.conns {
		if conn.State() == rdma.Connecting && conn.Established() != nil { // the peer has withdrawn
			_ = conn.Close() // on the engine's goroutine it does not fail
		}
	}
}

// rejected handles a rejection by the responder. It returns nil to dial again, or the error that
// ends the dial.
func (a *dialer) rejected(data []byte) error {
	peer := a.x.peer
	if isZero(data) {
		return nil // the responder ended before it answered: dial again
	}
	d, err := decodePrivateData(data)
	switch {
	case err != nil:
		return fmt.Errorf("wrong answer at %v: %w: %w", a.way, rdma.ErrRejected, err)
	case d.kind == cmBusy:
		return nil
	case d.kind == cmRefused:
		return fmt.Errorf("%s: %w: %q", peer.cfg.Peer, ErrRejected, d.text)
	case d.kind == cmWrongNames:
		return notFrom(peer.ends, d.offer.From, d.offer.To)
	}
	return fmt.Errorf("wrong answer at %v: %w", a.way, d.unexpected())
}
