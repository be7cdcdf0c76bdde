package oob

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// cm makes the connections of an exchange by the device's connection manager, whose private
// data carries what else is offered.
type cm struct {
	address string
	hosts   []netip.Addr // of a responder's address; none: all

	mu       sync.Mutex
	reporter *reporter     // of a requester that has met its peer; nil: nobody waits for a report
	reported chan struct{} // closed when the peer, a requester, has reported
	ok       bool          // what it has reported
}

// CM is a way by connection manager (rdma.Connections.Listen and Dial): the responder listens on
// HOST:PORT, an address of its device, and the requester dials it, and may start first. Where
// HOST is a name or an address of this machine alone, such as localhost, or empty, the
// responder listens on all addresses of its device. Names are resolved by New and Listen.
//
// Nothing travels beside RDMA: what is offered goes with the request for a connection and its
// acceptance, in their private data. That is at most one memory map or sync event, and a few
// bytes of Data: 37 with the requester's request, less the length of its name and 21 for a
// memory map; 68 or more with the reply. Larger offers fail with ErrInvalid. An exchange makes 1
// to 255 connections.
//
// The way is for Peer and Listen alone: its Exchange fails. The device needs a connection
// manager, and the connections are of RC (rdma.ErrNotSupported otherwise). One context listens on
// a port. A context that is Starting waits for the connections of a Peer.
//
// At its end the requester sends one last message to the responder, which reports how it has
// ended. Peer.Close does it while the device is open. Where the device is closed first, that
// does: the report is then that of the context, which has failed if it has an error, or if the
// engine stopped it at its own end. It waits for at most 5 s for the responder's answer.
//
// Nothing is encrypted, and names are no passwords: use it on networks that are trusted.
func CM(address string) (Way, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return nil, fmt.Errorf("cm:%s: %w: %w", address, ErrInvalid, err)
	}
	return &cm{address: address, reported: make(chan struct{})}, nil
}

func (w *cm) check(ends Ends) error {
	host, port, _ := net.SplitHostPort(w.address)
	switch {
	case ends.Role == Responder:
		return w.resolve(host)
	case host == "":
		return fmt.Errorf("cm:%s: %w: name the host that %s runs on", w.address, ErrInvalid, ends.Peer)
	case port == "0":
		return fmt.Errorf("cm:%s: %w: name the port that %s listens on", w.address, ErrInvalid, ends.Peer)
	}
	return nil
}

// resolve finds the addresses of the host to listen on.
func (w *cm) resolve(host string) (err error) {
	if host != "" {
		w.hosts, err = net.DefaultResolver.LookupNetIP(context.Background(), "ip", host)
	}
	return err
}

// listen listens on the address. Hosts of this machine alone stand for all addresses of the device.
func (w *cm) listen(r *rdma.Connections, cfg rdma.ListenConfig) (l *rdma.Listener, err error) {
	_, port, _ := net.SplitHostPort(w.address)
	if !slices.ContainsFunc(w.hosts, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() }) {
		return r.Listen(net.JoinHostPort("", port), cfg)
	}
	for _, host := range w.hosts {
		if l, err = r.Listen(net.JoinHostPort(host.Unmap().String(), port), cfg); !errors.Is(err, ErrInvalid) {
			return l, err
		}
	}
	return nil, err // none is the device's
}

func (w *cm) String() string { return "cm:" + w.address }

// Exchange implements Way.
func (w *cm) Exchange(context.Context, Ends, []byte) ([]byte, error) {
	return nil, fmt.Errorf("%v: %w: it makes connections, and carries no bytes by itself; use it with a Peer", w, ErrInvalid)
}

// Done implements Way.
func (w *cm) Done(ctx context.Context) error {
	select {
	case <-w.reported:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ok {
		return ErrPeerFailed
	}
	return nil
}

// takeReport notes what the peer has reported, once.
func (w *cm) takeReport(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.reported: // the answer to the report was lost
	default:
		w.ok = ok
		close(w.reported)
	}
}

// Close implements Way.
func (w *cm) Close(ok bool) error {
	w.mu.Lock()
	r := w.reporter
	w.mu.Unlock()
	if r != nil {
		r.report(ok)
		r.remove()
	}
	return nil
}

// meet implements connector.
func (w *cm) meet(ctx context.Context, x *exchange, offer Offer) error {
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
	_, _ = rand.Read(d.token[:]) // never fails
	wait, err := begin(w, d)
	if err != nil {
		return errors.Join(err, x.closeConnections())
	}
	x.peer.waitFor(fmt.Sprintf("%s, through %v", x.peer.cfg.Peer, w))
	x.call.beside(x.peer, ctx, wait, func(err error) { x.end(nil, err) })
	return nil
}

var errNoConnections = fmt.Errorf("%w: the connection manager makes connections, and the context has datagrams; use another way", ErrInvalid)

// noteInterval is how often a requester looks whether it has to note why nobody answers.
const noteInterval = 2 * time.Second

// dialer is the requester's end of an exchange.
type dialer struct {
	x        *exchange
	way      *cm
	token    cmToken
	answered map[*rdma.Connection]bool
	reply    *descriptor.Bundle
	unwatch  func()
}

// dial requests the connections. wait notes meanwhile why nobody answers.
func (x *exchange) dial(w *cm, d *privateData) (wait func(ctx context.Context) error, err error) {
	a := &dialer{x: x, way: w, token: d.token, answered: make(map[*rdma.Connection]bool)}
	for ; d.index < d.count; d.index++ {
		request, err := d.fitting()
		if err != nil {
			return nil, err
		}
		conn, err := x.connections.Dial(w.address, rdma.DialConfig{PrivateData: request, Timeout: rdma.Forever, OnResponse: a.responded, OnReject: a.rejected})
		if err != nil {
			return nil, err
		}
		x.conns = append(x.conns, conn)
	}
	a.unwatch = x.connections.WatchConnections(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if (state == rdma.Failed || state == rdma.Closed) && slices.Contains(x.conns, conn) {
			if err == nil {
				err = rdma.ErrPeerClosed
			}
			x.end(nil, err)
		}
	})
	x.over = func(err error) error {
		a.unwatch()
		if last := x.conns[0].DialError(); err != nil && last != nil {
			err = fmt.Errorf("%w; the last attempt: %w", err, last)
		}
		return err
	}
	first := x.conns[0]
	return func(ctx context.Context) error {
		ticker := time.NewTicker(noteInterval)
		defer ticker.Stop()
		noted := ""
		for lines := 0; ; {
			select {
			case <-ticker.C:
				why := "nobody has answered so far"
				if err := first.DialError(); err != nil {
					why = reason(err)
				}
				if why != noted && lines < maxRejections {
					lines++
					x.peer.ends.Note(fmt.Sprintf("%s does not answer at %v yet, trying again: %s", x.peer.cfg.Peer, w, why))
				}
				noted = why
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, nil
}

// reason is what the error of a dial says without the addresses of the attempt, which are
// others each time.
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

// responded takes the reply to one request. The connections are established when all have
// come: before, nothing is reported that the program does not know of, and no message comes.
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
		x.end(nil, fmt.Errorf("what answers at %v: %w", a.way, err))
		return
	}
	if conn == x.conns[0] {
		a.reply = &d.offer
	}
	if a.answered[conn] = true; len(a.answered) < len(x.conns) {
		return
	}
	a.reply.To = x.peer.cfg.Name // nobody else gets a reply
	answer, err := x.importOffer(a.reply, 0)
	if err == nil {
		answer.Connections = x.conns
		a.way.willReport(x.connections, conn, a.token)
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

// rejected decides whether the dial ends with the responder's rejection.
func (a *dialer) rejected(data []byte) error {
	peer := a.x.peer
	if isZero(data) {
		return nil // as where a program ends, or goes before it has answered
	}
	d, err := decodePrivateData(data)
	switch {
	case err != nil:
		return fmt.Errorf("what answers at %v: %w: %w", a.way, rdma.ErrRejected, err)
	case d.kind == cmBusy:
		return nil
	case d.kind == cmRefused:
		return fmt.Errorf("%s: %w: %q", peer.cfg.Peer, ErrRejected, d.text)
	case d.kind == cmOtherNames:
		return notFrom(peer.ends, d.offer.From, d.offer.To)
	}
	return fmt.Errorf("what answers at %v: %w", a.way, d.unexpected())
}

// reporter is what a requester needs to report how it has ended.
type reporter struct {
	once   sync.Once
	dev    verbs.CMDevice
	dial   verbs.CMDial
	token  cmToken
	remove func() // of what the device calls when it is closed
}

// willReport makes the requester report how it ends: in Close, or when the device is closed.
func (w *cm) willReport(r *rdma.Connections, conn *rdma.Connection, token cmToken) {
	p := &reporter{token: token, remove: func() {}, dial: verbs.CMDial{
		// A responder rejects what asks for more than its MTU before it looks at the private data.
		Addr: conn.PeerAddr(), Local: netip.AddrPortFrom(conn.LocalAddr().Addr(), 0), Type: verbs.RC, MTU: 256,
	}}
	p.dev, _ = r.Device().(verbs.CMDevice) // it has dialled
	cutShort := false
	var unwatch func()
	unwatch = r.Watch(func(_, next pe.State) {
		switch next {
		case pe.Stopping:
			cutShort = r.Engine().Draining()
		case pe.Idle:
			unwatch()
		}
	})
	if dev, ok := r.Device().(verbs.ClosingDevice); ok {
		p.remove = dev.OnClose(func() error {
			p.report(r.Err() == nil && !cutShort)
			return nil
		})
	}
	w.mu.Lock()
	w.reporter = p
	w.mu.Unlock()
}

// report reports, once, and waits for the answer for as long as outcomeTimeout. A responder
// that has gone does not need to know.
func (p *reporter) report(ok bool) {
	p.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), outcomeTimeout)
		defer cancel()
		_ = p.send(ctx, &privateData{kind: cmOutcome, token: p.token, ok: ok})
	})
}

// send sends the report as a request for a connection, which the responder rejects.
func (p *reporter) send(ctx context.Context, report *privateData) error {
	events := make(chan verbs.CMEvent, 8) // more than there are
	manager, err := p.dev.OpenCM(func(e verbs.CMEvent) {
		select {
		case events <- e:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = manager.Close() }()
	id, err := manager.Dial(p.dial)
	if err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			if e.Type != verbs.CMResolved {
				return e.Err
			}
			// A request names a queue pair. No two that are under way may name the same.
			qpn := binary.BigEndian.Uint32(p.token[:])>>8 | 2
			if err := id.Connect(verbs.CMParam{QPN: qpn, PrivateData: report.encode()}); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
