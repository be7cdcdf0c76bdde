//go:build linux && cgo && verbs

package main

// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmState is the phase of an identifier, as far as calls depend on it.
type cmState int

const (
	cmIdle cmState = iota
	cmBound
	cmResolved   // the address is resolved
	cmRouted     // the route is resolved
	cmConnecting // Connect was called; the connection knows the rest
	cmRequested  // a request has come
	cmAccepted   // Accept was called; the connection knows the rest
	cmListening
	cmFailed // no call but destroy is possible
)

// cmID is a connection identifier (rdma_create_id(3)).
type cmID struct {
	handle  uint32
	kind    verbs.QPType
	passive bool // the peer has requested the connection

	// mu guards what events need. It is taken under locks of the device, so it is not held in
	// calls of the device.
	mu     sync.Mutex
	c      unsafe.Pointer
	closed bool
	// accepted: Accept was called. An event of a request before that is not the program's, whose accept
	// fails, as with the kernel: the identifier still has its listener's context.
	accepted bool
	lasted   bool      // the connection was established
	ended    bool      // its end was reported
	killed   bool      // the peer's process is gone
	began    time.Time // of Connect
	// received has the completions of the receives, if librdmacm changes the queue pair's state.
	received *completionQueue
	end      *C.struct_vd_cm_event // that waits for polls

	// call is held by calls of the program. It guards the rest.
	call      sync.Mutex
	state     cmState
	device    *openDevice // nil: none yet
	entry     verbs.GIDEntry
	local     netip.AddrPort
	remote    netip.AddrPort
	conn      verbs.CMID // nil before Connect
	param     verbs.CMParam
	qpn       uint32 // of the connection
	listeners []*listener
	// unfollow ends the search for new devices; nil: there is none. It takes call, so call is not held
	// in wait.
	unfollow   func() (wait func())
	joins      map[*membership]struct{}
	tos        uint8
	ackTimeout int // code; negative: the default
	// bound, reuse and familyOnly are written under the lock of the bindings too, which read
	// those of other identifiers.
	bound      netip.AddrPort // that the identifier holds the port of
	reuse      bool
	familyOnly bool
}

var cmIDs table[cmID]

func newCMID(kind verbs.QPType) (*cmID, error) {
	id := &cmID{kind: kind, ackTimeout: -1, joins: make(map[*membership]struct{})}
	if id.handle = cmIDs.add(id); id.handle == 0 {
		return nil, fmt.Errorf("create a connection identifier: %w", syscall.ENOMEM)
	}
	return id, nil
}

// errCMState is the error of a call that the phase of the identifier does not allow.
func errCMState(call string) error {
	return fmt.Errorf("%s: not possible in the present phase of the identifier: %w", call, verbs.ErrState)
}

//export vd_cm_create
func vd_cm_create(c unsafe.Pointer, space, qpType C.int, handle *C.uint32_t) C.int {
	kind, ok := verbs.RC, true
	switch space {
	case C.RDMA_PS_TCP:
	case C.RDMA_PS_UDP:
		kind = verbs.UD
	case C.RDMA_PS_IB:
		kind, ok = services[C.enum_ibv_qp_type(qpType)]
		ok = ok && (kind == verbs.RC || kind == verbs.UC || kind == verbs.UD)
	default:
		ok = false
	}
	if !ok {
		return errnoOf(fmt.Errorf("create a connection identifier: software devices do not have the port space %#x for queue pairs of type %d: %w", space, qpType, verbs.ErrNotSupported))
	}
	id, err := newCMID(kind)
	if err != nil {
		return errnoOf(err)
	}
	id.c, *handle = c, C.uint32_t(id.handle)
	return 0
}

// onID makes a call on an identifier.
func onID(handle C.uint32_t, call func(*cmID) error) C.int {
	id := cmIDs.get(uint32(handle))
	if id == nil {
		return noSuch
	}
	id.call.Lock()
	defer id.call.Unlock()
	return cmErrno(call(id))
}

//export vd_cm_destroy
func vd_cm_destroy(handle C.uint32_t) C.int {
	id := cmIDs.remove(uint32(handle))
	if id == nil {
		return noSuch
	}
	id.mu.Lock()
	id.closed = true
	id.mu.Unlock()
	wait := func() {}
	defer func() { wait() }()
	id.call.Lock()
	defer id.call.Unlock()
	if id.unfollow != nil {
		wait = id.unfollow()
	}
	for _, l := range id.listeners {
		l.close()
	}
	for j := range id.joins {
		j.leave()
	}
	if id.conn != nil {
		_ = id.conn.Close()
		id.device.cm.forget(id.conn)
		id.device.cm.disconnects(id, id.qpn)
	}
	id.release()
	return 0
}

// deliver passes an event to the C half, and returns what it returns.
func (id *cmID) deliver(e *C.struct_vd_cm_event) unsafe.Pointer {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.deliverLocked(e)
}

func (id *cmID) deliverLocked(e *C.struct_vd_cm_event) unsafe.Pointer {
	if id.closed {
		return nil
	}
	e.id = id.c
	return C.vd_cm_event(e)
}

// report delivers an event of a call that the C half has made.
func (id *cmID) report(kind C.enum_rdma_cm_event_type, err error) {
	e := C.struct_vd_cm_event{_type: kind}
	if err != nil {
		e.status = -cmErrno(err)
	}
	id.deliver(&e)
}

// handleEvent implements eventHandler.
func (id *cmID) handleEvent(e verbs.CMEvent) {
	var to C.struct_vd_cm_event
	id.mu.Lock()
	defer id.mu.Unlock()
	switch e.Type {
	case verbs.CMUnresolved:
		if time.Since(id.began) > unreachableAfter {
			go id.giveUp(e.Err) // as below
		}
		return
	case verbs.CMResolved:
		go id.request() // the device's locks are held here
		return
	case verbs.CMConnectResponse:
		to._type = C.RDMA_CM_EVENT_CONNECT_RESPONSE
		setParam(&to, &e)
	case verbs.CMEstablished:
		to._type, id.lasted = C.RDMA_CM_EVENT_ESTABLISHED, true
		setParam(&to, &e)
	case verbs.CMFailed:
		if notListening(e.Err) && !id.closed && time.Since(id.began) < patience {
			time.AfterFunc(patience/20, id.dialAgain)
			return
		}
		failure(&to, e.Err, id.kind)
	case verbs.CMDisconnected:
		if id.ended {
			return
		}
		to._type, id.lasted, id.ended = C.RDMA_CM_EVENT_DISCONNECTED, true, true
		id.deliverEnd(&to)
		return
	case verbs.CMTimewaitExit:
		if !id.lasted {
			return // programs do not expect it after a failure
		}
		to._type = C.RDMA_CM_EVENT_TIMEWAIT_EXIT
	case verbs.CMAddressChanged:
		to._type = C.RDMA_CM_EVENT_ADDR_CHANGE
	case verbs.CMDeviceRemoved:
		to._type = C.RDMA_CM_EVENT_DEVICE_REMOVAL
	default:
		return
	}
	if id.passive && !id.accepted {
		to.request = C.uint32_t(id.handle)
	}
	if id.deliverLocked(&to) != nil { // the program has not read the request
		id.closed = true
		go vd_cm_destroy(C.uint32_t(id.handle)) // the device's locks are held here
	}
}

// polling is how long a program may take to poll the completions that came before the end of a
// connection. It is shorter than a time-wait, whose end is an event too.
const polling = 50 * time.Millisecond

// deliverEnd delivers the end of a connection after the completions that came before it. With an
// adapter they are there long before. Here a thread that was suspended between its poll of the
// queue and its look at the events would find both, the end first. The lock mu is held.
func (id *cmID) deliverEnd(e *C.struct_vd_cm_event) {
	received := id.received
	if received == nil {
		id.deliverLocked(e)
		return
	}
	id.end = e
	go func() {
		for until := time.Now().Add(polling); received.unread() > 0 && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
		id.mu.Lock()
		defer id.mu.Unlock()
		id.deliverWaitingEnd()
	}()
}

// deliverWaitingEnd delivers the end that waits for polls, if there is one. The lock mu is held.
func (id *cmID) deliverWaitingEnd() {
	if id.end != nil {
		id.deliverLocked(id.end)
		id.end = nil
	}
}

// peerGone reports the end of the connection, as if the peer had disconnected. The kernel does that
// for a process that is killed.
func (id *cmID) peerGone() {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.lasted && !id.ended {
		id.ended, id.killed = true, true
		id.deliverEnd(&C.struct_vd_cm_event{_type: C.RDMA_CM_EVENT_DISCONNECTED})
	}
}

// bind binds the identifier to a local address.
func (id *cmID) bind(addr netip.AddrPort) (err error) {
	if id.state != cmIdle {
		return errCMState("bind")
	}
	var device *openDevice
	var entry verbs.GIDEntry
	if !wildcard(addr.Addr()) {
		if hostaddr.InterfaceOf(addr.Addr()) == "" {
			return fmt.Errorf("bind to %v: this machine does not have the address: %w", addr, syscall.EADDRNOTAVAIL)
		}
		if device, entry, err = deviceWith(addr.Addr()); err != nil {
			return fmt.Errorf("bind to %v: %w", addr, err)
		}
	}
	if addr, err = id.reserve(addr); err != nil {
		return err
	}
	id.device, id.entry, id.local, id.state = device, entry, addr, cmBound
	return nil
}

// wildcard reports whether an address chooses no device. With adapters that holds for loopback
// addresses too, which they do not have. libfabric binds to localhost, and would take a device that
// it got so for the only one. Here it depends on whether the user wants a device with such an
// address.
func wildcard(addr netip.Addr) bool {
	if !addr.IsLoopback() {
		return addr.IsUnspecified()
	}
	if !devicesAreNamed() {
		return true
	}
	_, _, err := deviceWith(addr)
	return err != nil
}

//export vd_cm_bind
func vd_cm_bind(handle C.uint32_t, address *C.struct_sockaddr) C.int {
	return onID(handle, func(id *cmID) error {
		addr, err := addrPortOf(address)
		if err != nil {
			return err
		}
		return id.bind(addr)
	})
}

//export vd_cm_resolve_addr
func vd_cm_resolve_addr(handle C.uint32_t, source, destination *C.struct_sockaddr) C.int {
	return onID(handle, func(id *cmID) error {
		remote, err := addrPortOf(destination)
		if err != nil {
			return err
		}
		if id.state != cmIdle && id.state != cmBound {
			return errCMState("resolve address")
		}
		if addr := remote.Addr(); addr.IsUnspecified() { // this machine, as with sockets
			addr = netip.IPv6Loopback()
			if remote.Addr().Is4() {
				addr = localhost
			}
			remote = netip.AddrPortFrom(addr, remote.Port())
		}
		if source != nil && id.state == cmIdle {
			local, err := addrPortOf(source)
			if err != nil {
				return err
			}
			if err := id.bind(local); err != nil {
				return err
			}
		}
		if id.device != nil && id.local.Addr().Is4() != remote.Addr().Is4() {
			return fmt.Errorf("resolve %v: the identifier is bound to %v, an address of another family: %w", remote, id.local, verbs.ErrInvalid)
		}
		if err := id.resolve(remote.Addr()); err != nil {
			id.report(C.RDMA_CM_EVENT_ADDR_ERROR, fmt.Errorf("resolve %v: %w", remote, err))
			return nil
		}
		id.remote, id.state = remote, cmResolved
		id.report(C.RDMA_CM_EVENT_ADDR_RESOLVED, nil)
		return nil
	})
}

// resolve finds the device and the local address for packets to a peer, if the identifier is not
// bound to a device, and a port if it has none.
func (id *cmID) resolve(peer netip.Addr) error {
	local, device, entry := id.local.Addr(), id.device, id.entry
	if device == nil {
		source, err := local, error(nil)
		if !local.IsLoopback() {
			source, err = sourceOf(peer)
		}
		if err != nil {
			return err
		}
		if device, entry, err = deviceWith(source); err != nil {
			return err
		}
		local = entry.GID.Addr()
	}
	port := id.local.Port()
	if port == 0 {
		own, err := id.reserve(netip.AddrPortFrom(local, 0))
		if err != nil {
			return err
		}
		port = own.Port()
	}
	id.local, id.device, id.entry = netip.AddrPortFrom(local, port), device, entry
	return nil
}

//export vd_cm_resolve_route
func vd_cm_resolve_route(handle C.uint32_t) C.int {
	return onID(handle, func(id *cmID) error {
		if id.state != cmResolved {
			return errCMState("resolve route")
		}
		id.state = cmRouted
		id.report(C.RDMA_CM_EVENT_ROUTE_RESOLVED, nil)
		return nil
	})
}

//export vd_cm_query
func vd_cm_query(handle C.uint32_t, to *C.struct_vd_cm_route) C.int {
	return onID(handle, func(id *cmID) error {
		*to = C.struct_vd_cm_route{}
		remote, gid := id.remote, id.entry.GID
		if id.conn != nil {
			remote = id.conn.RemoteAddr()
			gid = verbs.GIDFromAddr(id.conn.LocalAddr().Addr())
		}
		copyAddrPort(&to.source, id.local)
		copyAddrPort(&to.destination, remote)
		if id.device == nil {
			return nil
		}
		attr, err := id.device.QueryPort(cmPort)
		if err != nil {
			return err
		}
		copyString(to.device[:], id.device.name)
		*(*verbs.GID)(unsafe.Pointer(&to.sgid)) = gid
		if remote.IsValid() {
			*(*verbs.GID)(unsafe.Pointer(&to.dgid)) = verbs.GIDFromAddr(remote.Addr().WithZone(""))
		}
		to.port, to.traffic_class, to.mtu = cmPort, C.uint8_t(id.tos), C.enum_ibv_mtu(abi.MTUCode(attr.ActiveMTU))
		return nil
	})
}

// The sizes of the private data of a request, in bytes.
const (
	requestData         = 56
	datagramRequestData = 180
)

//export vd_cm_connect
func vd_cm_connect(handle C.uint32_t, param *C.struct_rdma_conn_param) C.int {
	return onID(handle, func(id *cmID) error {
		if id.state != cmRouted {
			return errCMState("connect")
		}
		id.param = paramOf(param)
		most := requestData
		if id.kind == verbs.UD {
			most = datagramRequestData
		}
		if n := len(id.param.PrivateData); n > most {
			return fmt.Errorf("connect: %d bytes of private data, at most %d are possible: %w", n, most, verbs.ErrInvalid)
		}
		id.mu.Lock()
		id.began = time.Now()
		id.mu.Unlock()
		return id.dial()
	})
}

// dial begins to connect. The lock call is held.
func (id *cmID) dial() error {
	m, err := id.device.manager()
	if err != nil {
		return err
	}
	conn, err := m.Dial(verbs.CMDial{
		Addr: id.remote, Local: netip.AddrPortFrom(id.entry.GID.Addr(), id.local.Port()), Type: id.kind,
	})
	if err != nil {
		return err
	}
	id.conn, id.state, id.qpn = conn, cmConnecting, id.param.QPN
	m.connects(id, id.qpn)
	m.own(conn, id)
	return nil
}

// patience is how long a request is repeated while no program listens on the port. The client of
// perftest connects while its server is about to listen, and crashes if it is rejected. On a busy
// machine, where this library is often used, that is likely.
const patience = time.Second

// notListening reports whether no program listens at the peer, or none has opened its device yet.
func notListening(err error) bool {
	var failed *verbs.CMError
	return errors.As(err, &failed) && failed.Reason == verbs.CMRejectInvalidServiceID || errors.Is(err, verbs.ErrNotListening) || errors.Is(err, verbs.ErrUnreachable)
}

// dialAgain repeats a request that was rejected.
func (id *cmID) dialAgain() {
	id.call.Lock()
	defer id.call.Unlock()
	if id.state != cmConnecting || id.isClosed() {
		return
	}
	_ = id.conn.Close()
	id.device.cm.forget(id.conn)
	if err := id.dial(); err != nil {
		id.fail(err)
	}
}

// unreachableAfter is how long a listener of this machine that does not respond is looked up. A
// silent listener elsewhere is tried for about as long by the kernel's connection manager.
const unreachableAfter = time.Minute

// giveUp ends a dial that has not found its listener.
func (id *cmID) giveUp(err error) {
	id.call.Lock()
	defer id.call.Unlock()
	if id.state != cmConnecting || id.isClosed() {
		return
	}
	_ = id.conn.Close()
	id.device.cm.forget(id.conn)
	id.fail(err)
}

func (id *cmID) wasEstablished() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.lasted
}

func (id *cmID) isClosed() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.closed
}

// fail reports that the connection cannot be made. The lock call is held.
func (id *cmID) fail(err error) {
	id.state = cmFailed
	var e C.struct_vd_cm_event
	failure(&e, err, id.kind)
	id.deliver(&e)
}

func paramOf(p *C.struct_rdma_conn_param) verbs.CMParam {
	return verbs.CMParam{
		QPN: uint32(p.qp_num), PrivateData: C.GoBytes(p.private_data, C.int(p.private_data_len)),
		ResponderResources: int(p.responder_resources), InitiatorDepth: int(p.initiator_depth),
		RetryCount: uint8(min(p.retry_count, 7)), RNRRetryCount: uint8(min(p.rnr_retry_count, 7)), SRQ: p.srq != 0,
	}
}

// request sends the request, once the peer's device is known.
func (id *cmID) request() {
	id.call.Lock()
	defer id.call.Unlock()
	if id.state != cmConnecting || id.isClosed() {
		return
	}
	if err := id.conn.Connect(id.param); err != nil {
		id.fail(err)
	}
}

//export vd_cm_accept
func vd_cm_accept(handle C.uint32_t, param *C.struct_rdma_conn_param) C.int {
	return onID(handle, func(id *cmID) error {
		if id.state != cmRequested {
			return errCMState("accept")
		}
		p := paramOf(param)
		id.qpn = p.QPN
		id.device.cm.connects(id, p.QPN)
		id.setAccepted(true)
		if err := id.conn.Accept(p); err != nil {
			id.setAccepted(false)
			return err
		}
		id.state = cmAccepted
		return nil
	})
}

func (id *cmID) setAccepted(is bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.accepted = is
}

// onConnection makes a call on the connection of an identifier.
func onConnection(handle C.uint32_t, name string, call func(verbs.CMID) error) C.int {
	return onID(handle, func(id *cmID) error {
		if id.conn == nil {
			return errCMState(name)
		}
		return call(id.conn)
	})
}

//export vd_cm_establish
func vd_cm_establish(handle C.uint32_t) C.int {
	return onID(handle, func(id *cmID) error {
		if id.conn == nil {
			return errCMState("establish")
		}
		if err := id.conn.Establish(); err != nil {
			return err
		}
		id.mu.Lock()
		defer id.mu.Unlock()
		id.lasted = true
		return nil
	})
}

//export vd_cm_reject
func vd_cm_reject(handle C.uint32_t, data unsafe.Pointer, size C.uint8_t) C.int {
	return onConnection(handle, "reject", func(c verbs.CMID) error { return c.Reject(C.GoBytes(data, C.int(size))) })
}

//export vd_cm_disconnect
func vd_cm_disconnect(handle C.uint32_t) C.int {
	ended := false
	result := onID(handle, func(id *cmID) error {
		if id.conn == nil {
			return errCMState("disconnect")
		}
		id.mu.Lock()
		killed := id.killed
		id.received = nil // this end needs no time to poll: it has decided to disconnect
		id.deliverWaitingEnd()
		id.mu.Unlock()
		if killed {
			ended = true
			id.report(C.RDMA_CM_EVENT_TIMEWAIT_EXIT, nil)
			return nil
		}
		err := id.conn.Disconnect()
		if ended = errors.Is(err, verbs.ErrState); ended {
			if !id.wasEstablished() {
				id.state = cmFailed // so that a request that was rejected is not repeated
			}
			return nil
		}
		return err
	})
	if ended {
		return C.int(syscall.EALREADY)
	}
	return result
}

//export vd_cm_notify
func vd_cm_notify(handle C.uint32_t, event C.int) C.int {
	return onConnection(handle, "notify", func(c verbs.CMID) error {
		if event != C.IBV_EVENT_COMM_EST {
			return fmt.Errorf("notify of event %d: only IBV_EVENT_COMM_EST has a meaning: %w", event, verbs.ErrInvalid)
		}
		return c.Received()
	})
}

// maxOption is more bytes than any option of an identifier has.
const maxOption = 64

//export vd_cm_set_option
func vd_cm_set_option(handle C.uint32_t, level, name C.int, value unsafe.Pointer, size C.size_t) C.int {
	return onID(handle, func(id *cmID) error {
		if value == nil || size > maxOption && level == C.RDMA_OPTION_ID {
			return fmt.Errorf("set option %d of level %d with %d bytes: %w", name, level, size, verbs.ErrInvalid)
		}
		switch level {
		case C.RDMA_OPTION_ID:
			return id.setOption(name, C.GoBytes(value, C.int(size)))
		case C.RDMA_OPTION_IB:
			if name == C.RDMA_OPTION_IB_PATH {
				return id.setPath(int(size))
			}
		}
		return fmt.Errorf("there is no option %d of level %d: %w", name, level, syscall.ENOSYS)
	})
}

func (id *cmID) setOption(name C.int, value []byte) error {
	want := 1
	if name == C.RDMA_OPTION_ID_REUSEADDR || name == C.RDMA_OPTION_ID_AFONLY {
		want = int(C.sizeof_int)
	}
	if len(value) != want {
		return fmt.Errorf("option %d has %d bytes, must have %d: %w", name, len(value), want, verbs.ErrInvalid)
	}
	set := func(flag *bool) {
		bindings.Lock()
		defer bindings.Unlock()
		*flag = binary.NativeEndian.Uint32(value) != 0
	}
	switch name {
	case C.RDMA_OPTION_ID_TOS:
		id.tos = value[0]
	case C.RDMA_OPTION_ID_ACK_TIMEOUT:
		if id.kind != verbs.RC || value[0] > 31 {
			return fmt.Errorf("the option of the acknowledgement timeout is for RC, and from 0 to 31, not %d: %w", value[0], verbs.ErrInvalid)
		}
		id.ackTimeout = int(value[0])
	case C.RDMA_OPTION_ID_REUSEADDR:
		if id.state == cmListening {
			return errCMState("set RDMA_OPTION_ID_REUSEADDR")
		}
		set(&id.reuse)
	case C.RDMA_OPTION_ID_AFONLY:
		if id.state != cmIdle && id.state != cmBound {
			return errCMState("set RDMA_OPTION_ID_AFONLY")
		}
		set(&id.familyOnly)
	default:
		return fmt.Errorf("there is no option %d of level RDMA_OPTION_ID: %w", name, syscall.ENOSYS)
	}
	return nil
}

// setPath takes path records as the route. Their content has no meaning on RoCE.
func (id *cmID) setPath(size int) error {
	if size == 0 || size%int(C.sizeof_struct_ibv_path_data) != 0 {
		return fmt.Errorf("RDMA_OPTION_IB_PATH has %d bytes: %w", size, verbs.ErrInvalid)
	}
	if id.state != cmResolved {
		return errCMState("set RDMA_OPTION_IB_PATH")
	}
	id.state = cmRouted
	id.report(C.RDMA_CM_EVENT_ROUTE_RESOLVED, nil)
	return nil
}
