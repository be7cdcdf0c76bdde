package oob

import (
	"context"
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
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// cm makes the connections of an exchange by the device's connection manager. Its private
// data carries the rest of the offer.
type cm struct {
	address    string
	localAddrs []netip.Addr // addresses of the host that a responder listens on; none: all

	mu       sync.Mutex
	reporter *reporter     // of a requester whose exchange succeeded; nil: nothing to report
	reported chan struct{} // closed when the peer, a requester, has reported
	ok       bool          // the peer's report
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
// This Way is for Peer and Listen alone: its Exchange fails. The device needs a connection
// manager, and the transport service must be RC (rdma.ErrNotSupported otherwise). One context
// listens on a port. A Starting context waits for the connections of a Peer.
//
// At its end the requester sends one last message to the responder: the report whether it
// succeeded. Peer.Close sends it while the device is open. If the device is closed first,
// closing it sends the report, which then depends on the context: failure if the context has an
// error, or if it was stopped because the engine was closed or the context of Run ended. Sending
// waits at most 5 s for the responder's answer.
//
// Nothing is encrypted, and names are not passwords: use it only on trusted networks.
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
		return fmt.Errorf("cm:%s: %w: the host is missing; give the host that %s runs on", w.address, ErrInvalid, ends.Peer)
	case port == "0":
		return fmt.Errorf("cm:%s: %w: the port is 0; give the port that %s listens on", w.address, ErrInvalid, ends.Peer)
	}
	return nil
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

// Exchange implements Way.
func (w *cm) Exchange(context.Context, Ends, []byte) ([]byte, error) {
	return nil, fmt.Errorf("%v: %w: the connection manager only makes connections; use this way with a Peer", w, ErrInvalid)
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

// takeReport records the peer's report, once.
func (w *cm) takeReport(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.reported: // a repetition: our answer was lost
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

// startExchange implements connector.
func (w *cm) startExchange(ctx context.Context, x *exchange, offer Offer) error {
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
	x.peer.waitFor(fmt.Sprintf("%s, through %v", x.peer.cfg.Peer, w))
	x.call.runAsync(x.peer, ctx, wait, func(err error) { x.end(nil, err) })
	return nil
}

var errNoConnections = fmt.Errorf("%w: a context of datagrams cannot exchange through the connection manager; use another way", ErrInvalid)

// noteInterval is how often a requester checks for a new reason why nobody answers.
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

// dial requests the connections. While they are pending, wait notes why nobody answers.
func (x *exchange) dial(w *cm, d *privateData) (wait func(ctx context.Context) error, err error) {
	a := &dialer{x: x, way: w, token: d.token, answered: make(map[*rdma.Connection]bool)}
	for ; d.index < d.count; d.index++ {
		request, err := d.encodeWithinLimit()
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
	x.onEnd = func(err error) error {
		a.unwatch()
		if last := x.conns[0].DialError(); err != nil && last != nil {
			err = fmt.Errorf("%w; the last attempt: %w", err, last)
		}
		return err
	}
	first := x.conns[0]
	return func(ctx context.Context) error {
		tick := make(chan struct{}, 1)
		timer := host.Of(x.r.Device()).AfterFunc(noteInterval, func() { tick <- struct{}{} })
		defer timer.Stop()
		noted := ""
		for lines := 0; ; {
			select {
			case <-tick:
				timer.Reset(noteInterval)
				why := "no answer so far"
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
		a.way.prepareReport(x.connections, conn, a.token)
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

// reporter has what a requester needs to send its report.
type reporter struct {
	once   sync.Once
	host   host.Host
	dev    verbs.CMDevice
	dial   verbs.CMDial
	token  cmToken
	remove func() // removes the device's OnClose function
}

// prepareReport prepares the requester's report, which Close or the closing of the device sends.
func (w *cm) prepareReport(r *rdma.Connections, conn *rdma.Connection, token cmToken) {
	p := &reporter{host: host.Of(r.Device()), token: token, remove: func() {}, dial: verbs.CMDial{
		// A responder rejects a request for more than its MTU before it reads the private data.
		Addr: conn.PeerAddr(), Local: netip.AddrPortFrom(conn.LocalAddr().Addr(), 0), Type: verbs.RC, MTU: 256,
	}}
	p.dev, _ = r.Device().(verbs.CMDevice) // it is one: it has dialled
	stoppedByEngine := false
	var unwatch func()
	unwatch = r.Watch(func(_, next pe.State) {
		switch next {
		case pe.Stopping:
			stoppedByEngine = r.Engine().Draining()
		case pe.Idle:
			unwatch()
		}
	})
	if dev, ok := r.Device().(verbs.ClosingDevice); ok {
		p.remove = dev.OnClose(func() error {
			p.report(r.Err() == nil && !stoppedByEngine)
			return nil
		})
	}
	w.mu.Lock()
	w.reporter = p
	w.mu.Unlock()
}

// report sends the report, once, and waits up to outcomeTimeout for the answer. Errors are
// ignored: a responder that has ended does not need the report.
func (p *reporter) report(ok bool) {
	p.once.Do(func() {
		ctx, cancel := host.WithTimeout(context.Background(), p.host, outcomeTimeout)
		defer cancel()
		_ = p.send(ctx, &privateData{kind: cmOutcome, token: p.token, ok: ok})
	})
}

// send sends the report as a request for a connection, which the responder rejects.
func (p *reporter) send(ctx context.Context, report *privateData) error {
	events := make(chan verbs.CMEvent, 8) // room for all events of one dial
	manager, err := p.dev.OpenCM(func(e verbs.CMEvent) {
		add := func() {
			select {
			case events <- e:
			default:
			}
		}
		if s := p.host.Scheduler(); s != nil {
			s.Wake(add)
			return
		}
		add()
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
			// A request must name a queue pair, and no two pending requests may name the same one.
			qpn := binary.BigEndian.Uint32(p.token[:])>>8 | 2
			if err := id.Connect(verbs.CMParam{QPN: qpn, PrivateData: report.encode()}); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
