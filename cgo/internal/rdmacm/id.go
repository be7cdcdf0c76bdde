//go:build linux && cgo && verbs

package rdmacm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/verbs"
)

// phase is the state of a connectionID.
type phase int

const (
	phaseResolving phase = iota // Dial resolves the address
	phaseResolved
	phaseRequested // a request has arrived
	phaseConnecting
	phaseResponded // the peer has accepted
	phaseAccepted  // the peer has to establish the connection
	phaseEstablished
	phaseDisconnecting
	phaseEnded
	phaseClosed
)

// connectionID implements verbs.CMID. Its fields are guarded by the manager's lock.
type connectionID struct {
	manager        *manager
	raw            rawID
	kind           verbs.QPType
	listener       *listener // of an incoming request; nil after Dial
	phase          phase
	endpoints      atomic.Pointer[endpoints]
	offered        verbs.CMParam // the parameters of the peer's request, or of Connect
	timewaitExited bool          // CMTimewaitExit has been reported

	// Of Dial.
	resolve       func(timeout time.Duration) error
	resolvesFor   time.Duration // the latest call
	resolvesUntil time.Time
}

// endpoints has the addresses of both ends, the port and the index of the GID. It is replaced as a
// whole, never modified.
type endpoints struct {
	local, remote netip.AddrPort
	port, gid     int
}

func (m *manager) newID(raw rawID, kind verbs.QPType) *connectionID {
	id := &connectionID{manager: m, raw: raw, kind: kind}
	id.endpoints.Store(&endpoints{})
	m.ids[raw] = id
	return id
}

// setEndpoints stores the resolved addresses.
func (id *connectionID) setEndpoints(r *route, remote netip.AddrPort) {
	id.endpoints.Store(&endpoints{local: r.local, remote: remote, port: r.port, gid: id.manager.gidIndex(r)})
}

// Dial implements verbs.CM.
func (m *manager) Dial(p verbs.CMDial) (verbs.CMID, error) {
	op := fmt.Sprintf("dial %v", p.Addr)
	peer := netip.AddrPortFrom(p.Addr.Addr().Unmap(), p.Addr.Port())
	addr, local := peer.Addr(), p.Local.Addr().Unmap()
	unspecified := !local.IsValid() || local.IsUnspecified()
	if hostaddr.Unusable(addr) != "" || peer.Port() == 0 {
		return nil, fmt.Errorf("%s: give the address and the port of one host: %w", op, verbs.ErrInvalid)
	}
	if p.UDPPort != 0 && p.UDPPort != roceV2Port {
		return nil, fmt.Errorf("%s: UDPPort is %d: adapters send to %d only; let the software device listen there: %w", op, p.UDPPort, roceV2Port, verbs.ErrInvalid)
	}
	if err := checkService(p.Type); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	failed := func(err error) error {
		return &verbs.CMError{Step: verbs.CMStepResolve, Local: p.Local, Remote: p.Addr, Err: err}
	}
	switch {
	case addr.IsLoopback():
		// The kernel accepts no such address from the wire.
		return nil, failed(fmt.Errorf("%w: adapters cannot use loopback addresses; the addresses of device %s are %v", verbs.ErrNoRoute, m.dev.Name(), m.addresses()))
	case unspecified:
		any := netip.IPv6Unspecified()
		if addr.Is4() {
			any = netip.IPv4Unspecified()
		}
		local = any
	case local.Is4() != addr.Is4():
		return nil, failed(fmt.Errorf("%v and %v have different address families: %w", local, addr, verbs.ErrInvalid))
	default:
		if err := m.checkLocal(local); err != nil {
			return nil, failed(err)
		}
	}
	if err := m.lock(op); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	defer m.mu.Unlock()
	raw, err := m.main.newID(p.Type)
	if err != nil {
		return nil, failed(callError("rdma_create_id", err))
	}
	from, to := m.withZone(netip.AddrPortFrom(local, p.Local.Port())), m.withZone(peer)
	resolve := func(timeout time.Duration) error { return raw.resolveAddr(from, to, timeout) }
	if err := resolve(resolveFirst); err != nil {
		raw.destroy()
		return nil, failed(m.notResolved("rdma_resolve_addr", err))
	}
	id := m.newID(raw, p.Type)
	id.resolve, id.resolvesFor, id.resolvesUntil = resolve, resolveFirst, time.Now().Add(resolveTimeout)
	id.endpoints.Store(&endpoints{remote: peer, local: netip.AddrPortFrom(local, p.Local.Port())})
	return id, nil
}

func (m *manager) notResolved(function string, err error) error {
	errno, _ := errors.AsType[syscall.Errno](err)
	return unresolved(function, errno, m.dev.Name())
}

const roceV2Port = 4791 // UDP, IBTA annex A17

// LocalAddr implements verbs.CMID.
func (id *connectionID) LocalAddr() netip.AddrPort { return id.endpoints.Load().local }

// RemoteAddr implements verbs.CMID.
func (id *connectionID) RemoteAddr() netip.AddrPort { return id.endpoints.Load().remote }

// PortGID implements verbs.CMID.
func (id *connectionID) PortGID() (port, sgidIndex int) {
	w := id.endpoints.Load()
	return w.port, w.gid
}

// lock takes the lock for a call. The caller unlocks.
func (id *connectionID) lock(call string) error {
	err := id.manager.lock(call)
	if err == nil && id.phase == phaseClosed {
		err = fmt.Errorf("%s: the ID of the connection with %v: %w", call, id.RemoteAddr(), verbs.ErrClosed)
	}
	return err
}

// errState is the error of a call that the phase does not allow.
func (id *connectionID) errState(call, when string) error {
	return fmt.Errorf("%s the connection with %v: the call is possible %s: %w", call, id.RemoteAddr(), when, verbs.ErrState)
}

// refused returns the error of a call that librdmacm or the kernel has refused. The kernel
// returns EINVAL if the connection has changed its state meanwhile.
func (id *connectionID) refused(call, function string, err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("%s the connection with %v: %s: %w (errno %d): the peer may have given up: %w",
			call, id.RemoteAddr(), function, err, int(syscall.EINVAL), verbs.ErrState)
	}
	return fmt.Errorf("%s the connection with %v: %w", call, id.RemoteAddr(), callError(function, err))
}

// minRNRTimer is the code that Attr returns in place of the kernel's: 0.64 ms (IBTA 9.7.5.2.8).
// The kernel's code means 655 ms.
const minRNRTimer = 12

// Attr implements verbs.CMID.
func (id *connectionID) Attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	const call = "attributes of"
	none := func(err error) (verbs.QPAttr, verbs.QPAttrMask, error) { return verbs.QPAttr{}, 0, err }
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return none(err)
	}
	if id.phase == phaseResolving {
		return none(id.errState(call, "after CMResolved"))
	}
	known := false // whether the peer's queue pair is known
	switch id.phase {
	case phaseRequested, phaseResponded, phaseAccepted, phaseEstablished:
		known = true
	}
	switch to {
	case verbs.QPInitialized:
	case verbs.QPReadyToReceive, verbs.QPReadyToSend:
		if id.kind == verbs.UD {
			return datagramAttr(to)
		}
		if !known {
			return none(id.errState(call, "after the peer's request or response, and before the connection ends"))
		}
	default:
		return none(fmt.Errorf("attributes for %v: only Init, RTR and RTS have any: %w", to, verbs.ErrInvalid))
	}
	attr, mask, err := id.raw.attr(to)
	if err != nil {
		if id.phase == phaseRequested && id.kind != verbs.UD && errors.Is(err, syscall.EINVAL) {
			id.requestAbandoned()
		}
		return none(id.refused(call, "rdma_init_qp_attr", err))
	}
	attr.State = to
	if mask&verbs.QPAttrMinRNRTimer != 0 && attr.MinRNRTimer == 0 {
		attr.MinRNRTimer = minRNRTimer
	}
	// The kernel returns the peer's values, even if they exceed our offer.
	attr.MaxDestReadAtomic = min(attr.MaxDestReadAtomic, id.responderResources(id.offered.ResponderResources))
	attr.MaxInitReadAtomic = min(attr.MaxInitReadAtomic, id.initiatorDepth(id.offered.InitiatorDepth))
	return attr, mask, nil
}

// datagramAttr returns the attributes that librdmacm itself uses to move a UD queue pair to the
// state.
func datagramAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr, mask := verbs.QPAttr{State: to}, verbs.QPAttrState
	if to == verbs.QPReadyToSend {
		attr.SQPSN = randomPSN()
		mask |= verbs.QPAttrSQPSN
	}
	return attr, mask, nil
}

func randomPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:]) & 0xffffff
}

// responderResources and initiatorDepth limit the outstanding reads and atomics to what the
// device supports. 255 has a special meaning for librdmacm.
func (id *connectionID) responderResources(n int) int {
	return min(max(n, 0), id.manager.limits.MaxQPReadAtomic, 254)
}

func (id *connectionID) initiatorDepth(n int) int {
	return min(max(n, 0), id.manager.limits.MaxInitReadAtomic, 254)
}

// The maximum private data of applications in each message, in bytes.
const (
	requestPrivate         = 56
	acceptPrivate          = 196
	rejectPrivate          = 148
	datagramRequest        = 180
	datagramAnswer         = 136
	udpQKey         uint32 = 0x01234567 // of RDMA_PS_UDP
)

func (id *connectionID) checkPrivate(b []byte, stream, datagram int) error {
	most := stream
	if id.kind == verbs.UD {
		most = datagram
	}
	if len(b) > most {
		return fmt.Errorf("%d bytes of private data; at most %d are possible", len(b), most)
	}
	return nil
}

func (id *connectionID) checkParam(p *verbs.CMParam) error {
	switch {
	case p.QPN < 2 || p.QPN >= 1<<24:
		return fmt.Errorf("QPN is %#x; it must be from 2 to 0xffffff", p.QPN)
	case id.kind != verbs.UD && (p.RetryCount > 7 || p.RNRRetryCount > 7):
		return fmt.Errorf("RetryCount is %d and RNRRetryCount is %d; both have a maximum of 7", p.RetryCount, p.RNRRetryCount)
	}
	return nil
}

func (id *connectionID) invalid(call string, err error) error {
	return fmt.Errorf("%s the connection with %v: %w: %w", call, id.RemoteAddr(), err, verbs.ErrInvalid)
}

// Connect implements verbs.CMID.
func (id *connectionID) Connect(p verbs.CMParam) error {
	const call = "connect"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return err
	}
	if id.phase != phaseResolved {
		return id.errState(call, "once, after CMResolved")
	}
	err = id.checkPrivate(p.PrivateData, requestPrivate, datagramRequest)
	if err == nil && id.kind != verbs.UD {
		err = id.checkParam(&p)
	}
	if err != nil {
		return id.invalid(call, err)
	}
	p.ResponderResources, p.InitiatorDepth = id.responderResources(p.ResponderResources), id.initiatorDepth(p.InitiatorDepth)
	if err := id.raw.connect(&p); err != nil {
		return id.refused(call, "rdma_connect", err)
	}
	id.phase, id.offered = phaseConnecting, p
	return nil
}

// Accept implements verbs.CMID.
func (id *connectionID) Accept(p verbs.CMParam) error {
	const call = "accept"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return err
	}
	if id.phase != phaseRequested {
		return id.errState(call, "once, after CMConnectRequest")
	}
	p.RetryCount = 0 // the request determines it
	err = id.checkPrivate(p.PrivateData, acceptPrivate, datagramAnswer)
	if err == nil {
		err = id.checkParam(&p)
	}
	if err != nil {
		return id.invalid(call, err)
	}
	if id.kind == verbs.UD && p.QKey != 0 && p.QKey != udpQKey {
		return fmt.Errorf("%s the request of %v: the Q_Key is %#x, but the kernel's connection manager always sends that of RDMA_PS_UDP, %#x: %w",
			call, id.RemoteAddr(), p.QKey, udpQKey, verbs.ErrNotSupported)
	}
	// The peer's request limits both.
	p.ResponderResources = id.responderResources(min(p.ResponderResources, id.offered.ResponderResources))
	p.InitiatorDepth = id.initiatorDepth(min(p.InitiatorDepth, id.offered.InitiatorDepth))
	if err := id.raw.accept(&p); err != nil {
		id.requestAbandoned()
		return id.refused(call, "rdma_accept", err)
	}
	id.offered = p
	id.endRequest(phaseAccepted)
	return nil
}

// requestAbandoned reports that the peer has given up its request, after a call has failed for that
// reason. The kernel reports no event for it.
func (id *connectionID) requestAbandoned() {
	id.fail(verbs.CMStepAccept, fmt.Errorf("%w: the peer has given up", verbs.ErrRejected))
	id.endTimewait(false)
	id.endRequest(phaseEnded)
}

// endRequest ends the wait of a request for the application, and sets the phase.
func (id *connectionID) endRequest(to phase) {
	id.phase = to
	id.listener.answered()
}

// Reject implements verbs.CMID.
func (id *connectionID) Reject(privateData []byte) error {
	const call = "reject"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return err
	}
	switch {
	case id.phase == phaseRequested:
	case id.kind != verbs.UD && (id.phase == phaseResponded || id.phase == phaseAccepted):
	default:
		return id.errState(call, "after CMConnectRequest or CMConnectResponse, and until it is established")
	}
	if err := id.checkPrivate(privateData, rejectPrivate, datagramAnswer); err != nil {
		return id.invalid(call, err)
	}
	if err := id.raw.reject(privateData); err != nil {
		return id.refused(call, "rdma_reject", err)
	}
	was := id.phase
	id.phase = phaseEnded
	id.endTimewait(was == phaseAccepted)
	if was == phaseRequested {
		id.listener.answered()
	}
	return nil
}

// Establish implements verbs.CMID.
func (id *connectionID) Establish() error {
	const call = "establish"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return err
	}
	if id.phase != phaseResponded {
		return id.errState(call, "once, after CMConnectResponse")
	}
	if err := id.raw.establish(); err != nil {
		return id.refused(call, "rdma_establish", err)
	}
	id.phase = phaseEstablished
	return nil
}

// Received implements verbs.CMID.
func (id *connectionID) Received() error {
	const call = "establish"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	switch {
	case err != nil:
		return err
	case id.kind == verbs.UD, id.phase < phaseRequested:
		return id.errState(call, "after Accept, and not for UD")
	case id.phase != phaseAccepted:
		return nil
	}
	// The kernel refuses if the connection is already established; CMEstablished then follows.
	if err := id.raw.received(); err != nil && !errors.Is(err, syscall.EISCONN) && !errors.Is(err, syscall.EINVAL) {
		return id.refused(call, "rdma_notify", err)
	}
	return nil
}

// Disconnect implements verbs.CMID.
func (id *connectionID) Disconnect() error {
	const call = "disconnect"
	err := id.lock(call)
	defer id.manager.mu.Unlock()
	if err != nil {
		return err
	}
	if id.phase != phaseEstablished {
		return id.errState(call, "while it is established")
	}
	if err := id.raw.disconnect(); err != nil {
		return id.refused(call, "rdma_disconnect", err)
	}
	id.phase = phaseDisconnecting
	return nil
}

// Close implements verbs.CMID. The kernel rejects a pending request, and disconnects a
// connection.
func (id *connectionID) Close() error {
	err := id.lock("close")
	defer id.manager.mu.Unlock()
	if err != nil {
		return nil // already closed, or closed with its manager
	}
	delete(id.manager.ids, id.raw)
	id.manager.destroyer.destroy(id.raw)
	was := id.phase
	id.phase = phaseClosed
	if was == phaseRequested {
		id.listener.answered()
	}
	return nil
}
