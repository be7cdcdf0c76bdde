package oob

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/rdma"
)

// cm makes the connections of an exchange by the device's connection manager, and carries
// what else is offered over the first of them.
type cm struct {
	address string

	mu       sync.Mutex
	reporter *reporter     // of a requester that has met its peer; nil: nobody waits for a report
	reported chan struct{} // closed when the peer, a requester, has reported
	ok       bool          // what it has reported
}

// CM is a way by connection manager (rdma.Connections.Listen and Dial): the responder listens on
// HOST:PORT, an address of its device, and the requester dials it, and may start first. Where
// HOST is a name or an address of this machine alone, such as localhost, or empty, the
// responder listens on all addresses of its device. The connections of the exchange are made
// so too: nothing travels beside RDMA, and no descriptor of a connection at all. Everything
// else that is offered goes over the first connection, before the program has it, and takes
// none of its receives.
//
// It makes at least one connection, and is for Peer and Listen alone: its Exchange fails. The
// device needs a connection manager (rdma.ErrNotSupported otherwise), and one context listens
// on a port.
//
// The requester reports how it has ended to the responder's port by service ID resolution
// (IBTA 12.11). Peer.Close does it while the device is open. Where the device is closed
// first, that does: the report is then that of the context, which has failed if it has an
// error, or if the engine stopped it at its own end. It waits for at most 5 s for the
// responder to acknowledge.
//
// Nothing is encrypted, and nobody proves who he is: use it on networks that are trusted.
func CM(address string) (Way, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return nil, fmt.Errorf("cm:%s: %w: %w", address, ErrInvalid, err)
	}
	return newCM(address), nil
}

func newCM(address string) *cm { return &cm{address: address, reported: make(chan struct{})} }

func (w *cm) check(ends Ends) error {
	host, port, _ := net.SplitHostPort(w.address)
	switch {
	case ends.Role == Responder:
	case host == "":
		return fmt.Errorf("cm:%s: %w: name the host that %s runs on", w.address, ErrInvalid, ends.Peer)
	case port == "0":
		return fmt.Errorf("cm:%s: %w: name the port that %s listens on", w.address, ErrInvalid, ends.Peer)
	}
	return nil
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
	case <-w.reported: // its acknowledgement was lost
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
	p := x.peer
	if x.datagrams != nil {
		return fmt.Errorf("%w: the connection manager makes connections, and the context has datagrams; use another way", ErrInvalid)
	}
	n := offer.connections()
	if n < 1 || n > maxConnections {
		return fmt.Errorf("%w: Offer.Connections is %d; by connection manager it is 1 to %d", ErrInvalid, offer.Connections, maxConnections)
	}
	b, err := x.bundle(offer)
	if err != nil {
		return err
	}
	ours, err := b.Encode()
	if err != nil {
		return err
	}
	base := making{x: x, way: w, connections: n, ours: ours, over: make(chan struct{}), release: x.connections.HoldStarting()}
	var m meeting = &asking{making: base}
	if p.cfg.Role == Responder {
		m = &expecting{making: base}
	}
	p.waitFor(fmt.Sprintf("%s, through %v", p.cfg.Peer, w))
	end := func(err error) {
		if base.end() {
			m.giveUp(err)
			base.release()
		}
	}
	x.call = newCall(x.r.Engine(), x.r, end)
	x.call.beside(p, ctx, func(ctx context.Context) error {
		if err := m.prepare(ctx); err != nil {
			return err
		}
		x.call.later(func() {
			if !x.call.ended {
				m.begin(end)
			}
		})
		select {
		case <-base.over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, end)
	return nil
}

// making is an exchange by connection manager under way, at either end.
type making struct {
	x           *exchange
	way         *cm
	connections int
	ours        []byte // the bundle
	over        chan struct{}
	release     func() // of Starting
}

// end reports whether the exchange ends now, and had not before.
func (m *making) end() bool {
	if !m.x.call.end() {
		return false
	}
	close(m.over)
	return true
}

// maxConnections is how many connections one exchange by connection manager can make.
const maxConnections = 1<<16 - 1

// meeting is one end of an exchange by connection manager. All but prepare runs on the
// engine's goroutine.
type meeting interface {
	// prepare does what may take long, beside the engine.
	prepare(ctx context.Context) error
	// begin begins; fail ends it with an error.
	begin(fail func(err error))
	// giveUp is called when it has ended with an error.
	giveUp(err error)
}

// listenAddress is the address to listen on for one that a program has given: hosts of this
// machine alone stand for all addresses of the device. It may take as long as a name takes
// to be resolved.
func listenAddress(ctx context.Context, r *rdma.Connections, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return address, err
	}
	var list []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		list = []netip.Addr{a}
	} else if list, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", err
	}
	attr, err := r.Device().Query()
	if err != nil {
		return "", err
	}
	for i := 1; i <= attr.Ports; i++ {
		gids, err := r.Device().GIDs(i)
		if err != nil {
			return "", err
		}
		for _, g := range gids {
			if slices.ContainsFunc(list, func(a netip.Addr) bool { return a.Unmap() == g.GID.Addr().Unmap() }) {
				return net.JoinHostPort(g.GID.Addr().Unmap().String(), port), nil
			}
		}
	}
	if !slices.ContainsFunc(list, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() }) {
		return net.JoinHostPort("", port), nil
	}
	return net.JoinHostPort(list[0].Unmap().String(), port), nil // which is refused, with the reason
}

// acceptMade imports what the peer offers beside the connections, which are there.
func (x *exchange) acceptMade(theirs []byte, conns []*rdma.Connection) (*Answer, error) {
	b, err := x.peer.decode(theirs, 0)
	if err != nil {
		return nil, err
	}
	a, err := importBundle(x.r.Device(), b)
	if err != nil {
		return nil, err
	}
	a.Connections, x.conns, x.peer.conns = conns, conns, slices.Clone(conns)
	return a, nil
}

// differentNumber is the error of ends that do not agree on their connections.
func differentNumber(peer string, theirs, ours int) error {
	return fmt.Errorf("%w: %s offers %d connections, this program %d: give both the same number", ErrWrongPeer, peer, theirs, ours)
}

// bundleFrom is the name of the program that has made a bundle.
func bundleFrom(desc []byte) (string, error) {
	b, err := descriptor.DecodeBundle(desc)
	if err != nil {
		return "", err
	}
	return b.From, nil
}
