package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// MaxResolvePrivate is the maximum length of the user's private data in a SIDR_REQ, in bytes.
const MaxResolvePrivate = mad.SIDRREQPrivateLen - mad.IPHeaderLen

// ResolveParams are the parameters of [Manager.Resolve] (IBTA 12.11).
type ResolveParams struct {
	Service         Service
	Path            Path          // as in ConnectParams
	SourcePort      uint16        // as in ConnectParams
	ResponseTimeout uint8         // as in ConnectParams
	MaxCMRetries    uint8         // as in ConnectParams
	Deadline        time.Duration // ends the resolution; 0: only MaxCMRetries ends it
	PrivateData     []byte        // up to MaxResolvePrivate bytes
	Value           any           // becomes Resolution.Value
}

// Resolution is a SIDR_REQ that waits for its response. One event ends it, unless it is
// closed.
type Resolution struct {
	// Value belongs to the caller.
	Value          any
	manager        *Manager
	path           Path
	local, remote  verbs.GID
	requestID      uint32
	transactionID  uint64
	message        *[mad.Len]byte
	timer          timer
	retransmission retransmission
	deadline       time.Duration
	closed         bool
}

// Resolve asks for the queue pair of a service. EventSIDRResponse or EventUnreachable follows.
func (m *Manager) Resolve(p ResolveParams, now time.Duration) (*Resolution, error) {
	setDefault(&p.ResponseTimeout, defaultResponseTimeout)
	setDefault(&p.MaxCMRetries, defaultMaxCMRetries)
	var err error
	switch {
	case !p.Path.usable():
		err = fmt.Errorf("the path from %v to %v must have two addresses of one family, and two ports", p.Path.Local, p.Path.Remote)
	case p.ResponseTimeout > 31 || p.MaxCMRetries > 15:
		err = fmt.Errorf("ResponseTimeout is %d and MaxCMRetries is %d; the maxima are 31 and 15", p.ResponseTimeout, p.MaxCMRetries)
	case len(p.PrivateData) > MaxResolvePrivate:
		err = fmt.Errorf("%d bytes of private data exceed the %d of a SIDR_REQ", len(p.PrivateData), MaxResolvePrivate)
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %v at %v: %w: %w", p.Service, p.Path.Remote.Addr(), err, verbs.ErrInvalid)
	}
	if m.closed {
		return nil, fmt.Errorf("resolve %v at %v: %w", p.Service, p.Path.Remote.Addr(), verbs.ErrClosed)
	}
	if len(m.resolutions) >= m.config.MaxConnections {
		return nil, fmt.Errorf("resolve %v at %v: %d resolutions are in progress, the limit; close some: %w", p.Service, p.Path.Remote.Addr(), len(m.resolutions), verbs.ErrLimit)
	}
	p.SourcePort = m.sourcePort(p.SourcePort)
	r := &Resolution{
		Value: p.Value, manager: m, path: p.Path, local: p.Path.localGID(), remote: p.Path.remoteGID(),
		requestID:      m.newID(func(id uint32) bool { return m.resolutions[id] != nil }),
		transactionID:  m.newTransactionID(p.Path.Local.Port()),
		retransmission: retransmission{responseTimeout: timeoutDuration(p.ResponseTimeout)}, deadline: p.Deadline,
		message: m.buffer(),
	}
	r.retransmission.start(m, r.remote, p.MaxCMRetries, now)
	r.timer.Owner = r
	private := ipHeader(p.Path, p.SourcePort)
	_ = (&mad.SIDRREQ{
		TransactionID: r.transactionID, RequestID: r.requestID, PKey: wire.DefaultPKey, ServiceID: p.Service.ID(),
		PrivateData: append(private[:], p.PrivateData...),
	}).Encode(r.message) // cannot fail: the length has been checked
	m.resolutions[r.requestID] = r
	r.send(now)
	return r, nil
}

func (r *Resolution) send(now time.Duration) {
	r.manager.queueMAD(r.path, r.message)
	at := now + r.retransmission.wait + r.manager.jitter(r.retransmission.wait)
	if r.deadline != 0 {
		at = min(at, r.deadline)
	}
	r.manager.timers.Set(&r.timer, at)
}

func (r *Resolution) expire(now time.Duration) {
	switch {
	case r.deadline != 0 && now >= r.deadline:
		r.end(Event{Type: EventUnreachable, Cause: CauseDeadline})
	case !r.retransmission.next():
		r.end(Event{Type: EventUnreachable, Cause: CauseTimeout})
	default:
		r.manager.counters.Retransmitted++
		r.send(now)
	}
}

// end removes the resolution, and posts an event.
func (r *Resolution) end(e Event) {
	r.remove()
	e.Resolution = r
	r.manager.post(e)
}

func (r *Resolution) remove() {
	m := r.manager
	delete(m.resolutions, r.requestID)
	m.timers.Remove(&r.timer)
	m.release(r.message)
	r.message = nil
}

// Close ends the resolution without an event. It does nothing if the resolution has ended.
func (r *Resolution) Close() {
	r.closed = true
	if r.message != nil {
		r.remove()
	}
}

func (r *Resolution) isFromPeer(from *Path) bool {
	return samePeer(&r.path, from) && from.remoteGID() == r.remote && from.localGID() == r.local
}

func (m *Manager) receiveSIDRREP(r *mad.SIDRREP, from Path, now time.Duration) {
	o := m.resolutions[r.RequestID]
	switch {
	case o == nil:
		m.counters.UnknownConnection++
	case !o.isFromPeer(&from):
		m.counters.WrongPeer++
	case r.TransactionID != o.transactionID:
		m.counters.WrongTransaction++
	case r.Status == mad.SIDRValid && r.QPN < 2:
		m.counters.Malformed++
	default:
		o.retransmission.noteResponse(m, o.remote, now)
		o.end(Event{
			Type: EventSIDRResponse, Status: r.Status, QPN: r.QPN, QKey: r.QKey,
			Info: bytes.Clone(r.Info), PrivateData: bytes.Clone(r.PrivateData),
		})
	}
}

// sidrKey finds a request without a reply yet, for duplicates.
type sidrKey struct {
	address   verbs.GID
	port      uint16
	requestID uint32
}

// SIDRRequest is a request for the queue pair of a service that waits for a Reply. Without
// one, it is removed after Config.HandshakeTimeout, and the peer asks again or gives up.
type SIDRRequest struct {
	// Value belongs to the caller.
	Value         any
	manager       *Manager
	listener      *Listener
	key           sidrKey
	path          Path
	peer          netip.AddrPort
	serviceID     uint64
	transactionID uint64
	timer         timer
	requestQueued bool // its event has not been taken
	done          bool
}

// Path returns the path to the requester.
func (r *SIDRRequest) Path() Path { return r.path }

// PeerAddr returns the requester's address, and the port that it named as its own.
func (r *SIDRRequest) PeerAddr() netip.AddrPort { return r.peer }

func (m *Manager) receiveSIDRREQ(r *mad.SIDRREQ, from Path, now time.Duration) {
	local, remote := from.localGID(), from.remoteGID()
	back := responsePath(r.TransactionID, from)
	key := sidrKey{remote, back.Remote.Port(), r.RequestID}
	if m.sidr[key] != nil {
		m.counters.DuplicateREQ++
		return
	}
	refuse := func() {
		m.send(back, &mad.SIDRREP{TransactionID: r.TransactionID, RequestID: r.RequestID, ServiceID: r.ServiceID, Status: mad.SIDRNotSupported})
	}
	l := m.listenerFor(r.ServiceID, local)
	var header mad.IPHeader
	switch {
	case l == nil || l.params.Transport != verbs.UD:
		m.counters.NoService++
		refuse()
		return
	case !pKeyUsable(r.PKey) || header.Decode(r.PrivateData) != nil:
		m.counters.UnsupportedRequest++
		refuse()
		return
	case verbs.GIDFromAddr(header.Source) != remote || verbs.GIDFromAddr(header.Destination) != local:
		m.counters.AddressMismatch++
		return
	case !m.admit(l, remote):
		return
	}
	o := &SIDRRequest{
		manager: m, listener: l, key: key, path: back, peer: netip.AddrPortFrom(back.Remote.Addr(), header.SourcePort),
		serviceID: r.ServiceID, transactionID: r.TransactionID, requestQueued: true,
	}
	o.timer.Owner = o
	m.sidr[key] = o
	m.timers.Set(&o.timer, now+m.config.HandshakeTimeout)
	m.post(Event{Type: EventSIDRRequest, Listener: l, Request: o, PrivateData: bytes.Clone(r.PrivateData[mad.IPHeaderLen:])})
}

// SIDRReply is the reply to a SIDRRequest.
type SIDRReply struct {
	Status      mad.SIDRStatus // mad.SIDRValid, or the reason for a refusal
	QPN         uint32         // from 2, with SIDRValid
	QKey        uint32
	Info        []byte // up to 72 bytes
	PrivateData []byte // up to 136 bytes
}

// Reply sends the SIDR_REP. If it is lost, the peer asks again, which posts another event.
func (r *SIDRRequest) Reply(p SIDRReply) error {
	var err error
	switch {
	case r.done:
		return fmt.Errorf("reply to the SIDR request of %v: it was answered before, or not within %v: %w", r.peer, r.manager.config.HandshakeTimeout, verbs.ErrState)
	case p.Status == mad.SIDRValid && p.QPN < 2 || p.QPN >= 1<<24:
		err = fmt.Errorf("QPN is %#x, must be from 2 to 0xffffff", p.QPN)
	case len(p.PrivateData) > mad.SIDRREPPrivateLen || len(p.Info) > mad.InfoLen:
		err = fmt.Errorf("%d bytes of private data and %d of additional information; the limits are %d and %d",
			len(p.PrivateData), len(p.Info), mad.SIDRREPPrivateLen, mad.InfoLen)
	}
	if err != nil {
		return fmt.Errorf("reply to the SIDR request of %v: %w: %w", r.peer, err, verbs.ErrInvalid)
	}
	r.sendReply(&mad.SIDRREP{Status: p.Status, QPN: p.QPN, QKey: p.QKey, Info: p.Info, PrivateData: p.PrivateData})
	return nil
}

// sendReply sends the reply and removes the request.
func (r *SIDRRequest) sendReply(reply *mad.SIDRREP) {
	if r.done {
		return
	}
	reply.TransactionID, reply.RequestID, reply.ServiceID = r.transactionID, r.key.requestID, r.serviceID
	r.manager.send(r.path, reply)
	r.remove()
}

func (r *SIDRRequest) expire(time.Duration) {
	r.manager.counters.HandshakesExpired++
	r.remove()
}

func (r *SIDRRequest) remove() {
	r.done = true
	delete(r.manager.sidr, r.key)
	r.manager.timers.Remove(&r.timer)
	if !r.requestQueued {
		r.manager.unadmit(r.listener, r.key.address)
	}
}

// deliver marks the request as taken, and reports whether the caller must see it.
func (r *SIDRRequest) deliver() bool {
	r.requestQueued = false
	if r.done {
		r.manager.unadmit(r.listener, r.key.address)
	}
	return !r.done
}
