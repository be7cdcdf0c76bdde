package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/deadline"
	"github.com/verbena-rdma/verbena/rdma/internal/dialling"
	"github.com/verbena-rdma/verbena/verbs"
)

// ResolvePeer asks for the endpoint of a program that listens on an address, by service ID
// resolution (IBTA 12.11), which only UD has. The peer is a Listener of a context of
// datagrams, or any program that uses rdma_cm(7) with RDMA_PS_UDP. The address is as for Dial,
// and so are the fields of the configuration that apply; PrivateData has at most 180 bytes.
// done is called once, on the engine's goroutine, inside Progress. It gets the peer and the
// private data of the answer, 136 bytes, padded with zeroes; or an error as from Dial; or
// ErrFlushed when the context stops.
//
// It is legal in Starting and Running, and has the immediate errors of Dial.
func (c *Datagrams) ResolvePeer(addr string, cfg DialConfig, done func(p *Peer, privateData []byte, err error)) error {
	op := "resolve " + addr
	if err := c.control.Owned(op); err != nil {
		return err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return err
	}
	host, port, err := c.splitTarget(addr, &cfg, maxResolveData)
	switch {
	case err != nil:
	case done == nil:
		err = fmt.Errorf("%w: no function is given", ErrInvalid)
	case c.set.Transport != verbs.UD:
		err = fmt.Errorf("%w: only UD has service ID resolution, and DatagramsConfig.Transport is %v", ErrNotSupported, c.set.Transport)
	case c.phase != phaseUp:
		err = fmt.Errorf("%w: the context is stopping", ErrFlushed)
	default:
		err = c.manager.use()
	}
	if err != nil {
		return fmt.Errorf("rdma: %s with context %q: %w", op, c.set.Name, err)
	}
	r := &resolution{ctx: c, addr: addr, port: port, cfg: cfg, done: done, Attempts: c.newAttempts(&cfg)}
	r.cfg.PrivateData = slices.Clone(cfg.PrivateData)
	r.timer.Init(&c.deadlines.Deadlines, r.due)
	r.place.Value = r
	c.endpoint.resolutions.Push(&r.place)
	r.schedule()
	lookup, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	c.manager.lookUp(lookup, host, r.resolved)
	return nil
}

// resolution is a ResolvePeer under way.
type resolution struct {
	dialling.Attempts
	ctx    *Datagrams
	addr   string
	port   uint16
	cfg    DialConfig
	done   func(*Peer, []byte, error) // nil: it was called
	cancel context.CancelFunc
	id     verbs.CMID // nil: no attempt is under way
	place  fifo.Node[*resolution]
	timer  deadline.Deadline
}

// resolved starts the attempts with the host's addresses.
func (r *resolution) resolved(list []netip.Addr, err error) {
	if r.done == nil {
		return
	}
	if err != nil {
		r.end(nil, nil, err)
		return
	}
	own := r.ctx.port.IP()
	if !r.Add(list, func(a netip.Addr) bool { return r.ctx.sameFamily(own, a) }) {
		r.end(nil, nil, fmt.Errorf("%w: the host has the addresses %v, and the endpoint's address, %v, is of another family", ErrNoRoute, list, own))
		return
	}
	r.attempt()
}

// attempt asks the next of the host's addresses.
func (r *resolution) attempt() {
	m := &r.ctx.manager
	target := r.Next()
	r.schedule()
	id, err := m.cm.Dial(verbs.CMDial{
		Addr: netip.AddrPortFrom(target, r.port), Local: netip.AddrPortFrom(r.ctx.port.IP(), 0), Type: verbs.UD, UDPPort: r.cfg.UDPPort,
	})
	if err != nil {
		r.failed(err)
		return
	}
	r.id = id
	m.ids[id] = r
}

// event implements idOwner.
func (r *resolution) event(ev *verbs.CMEvent) {
	switch ev.Type {
	case verbs.CMUnresolved:
		if r.Others() {
			r.failed(ev.Err)
			return
		}
		r.Waiting = ev.Err
	case verbs.CMResolved:
		r.Waiting = nil
		if err := r.id.Connect(verbs.CMParam{QPN: r.ctx.endpoint.lane.Num(), QKey: r.ctx.set.qkey, PrivateData: r.cfg.PrivateData}); err != nil {
			r.failed(err)
		}
	case verbs.CMEstablished:
		addr := EndpointAddr{GID: ev.Address.DGID, QPN: ev.Param.QPN, UDPPort: ev.Address.UDPPort}
		if err := r.ctx.reaches(r.ctx.port.State().GID.Type, addr.GID); err != nil {
			r.end(nil, nil, err)
			return
		}
		if addr.QPN < 2 || addr.QPN >= verbs.MulticastQPN {
			r.end(nil, nil, fmt.Errorf("%w: the peer answered with the invalid queue pair number %#x", ErrMismatch, addr.QPN))
			return
		}
		p, _ := r.ctx.addPeer(addr)
		p.qkey, p.lid = ev.Param.QKey, ev.Address.DLID
		r.end(p, ev.Param.PrivateData, nil)
	case verbs.CMFailed:
		r.failed(ev.Err)
	case verbs.CMDeviceRemoved:
		r.end(nil, nil, fmt.Errorf("%w: %s was removed", ErrDevice, r.ctx.dev.Name()))
	}
}

// failed handles the failure of an attempt.
func (r *resolution) failed(err error) {
	r.ctx.manager.closeID(r.id)
	r.id = nil
	if !r.Failed(err, dialling.Retryable(err)) {
		r.end(nil, nil, r.Last)
		return
	}
	if r.Now() {
		r.attempt()
		return
	}
	r.schedule()
}

// due gives up, or makes the next attempt.
func (r *resolution) due(now time.Time) {
	switch again, err := r.Due(now); {
	case err != nil:
		r.end(nil, nil, err)
	case again:
		r.attempt()
	default:
		r.schedule()
	}
}

// schedule sets the deadline to what comes first.
func (r *resolution) schedule() {
	r.timer.Set(r.Deadline())
}

// end calls the program, once.
func (r *resolution) end(p *Peer, data []byte, err error) {
	done := r.done
	if done == nil {
		return
	}
	r.done = nil
	r.cancel()
	r.ctx.manager.closeID(r.id)
	r.id = nil
	r.timer.Set(time.Time{})
	r.ctx.endpoint.resolutions.Remove(&r.place)
	if err != nil {
		err = fmt.Errorf("rdma: resolve %s with context %q: %w", r.addr, r.ctx.set.Name, err)
	}
	done(p, data, err)
}

// Answer sends the queue pair number and the Q_Key of the context's endpoint to the peer of a
// request, with at most 136 bytes for the peer's program. Contexts of UD use it in place of
// Accept. The peer has not sent a message by then. It is legal once, in OnRequest or later.
// Errors are those of Accept.
func (q *ConnectRequest) Answer(privateData []byte) error {
	const op = "answer"
	if err := q.checkOpen(op); err != nil {
		return err
	}
	c, ok := q.listener.manager.owner.(*Datagrams)
	id := q.id
	switch {
	case !ok:
		return fmt.Errorf("rdma: %s the %v: %w: the context has connections; call Accept", op, q, ErrNotSupported)
	case len(privateData) > maxAnswerData:
		return fmt.Errorf("rdma: %s the %v: %w: the private data has %d bytes; the message holds at most %d", op, q, ErrRange, len(privateData), maxAnswerData)
	}
	q.finish(nil)
	err := id.Accept(verbs.CMParam{QPN: c.endpoint.lane.Num(), QKey: c.set.qkey, PrivateData: privateData})
	c.manager.closeID(id)
	if errors.Is(err, verbs.ErrState) { // the peer has given up
		err = fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err != nil {
		return fmt.Errorf("rdma: %s the %v: %w", op, q, err)
	}
	return nil
}
