//go:build linux && cgo && verbs

package rdmacm

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include "verbena_rdmacm.h"
import "C"

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/verbs"
)

// Open opens a connection manager for an adapter, which reports to handle, as
// [verbs.CMDevice] describes. The adapter is one of package ibverbs; programs call its OpenCM.
func Open(dev verbs.Device, handle func(verbs.CMEvent)) (verbs.CM, error) {
	if err := load(); err != nil {
		return nil, fmt.Errorf("open connection manager of %s: %w", dev.Name(), err)
	}
	return open(dev, handle, native{})
}

var load = sync.OnceValue(func() error {
	if why := C.vc_load(); why != nil {
		return fmt.Errorf("librdmacm cannot be loaded (%s): install it (Debian: librdmacm1): %w",
			C.GoString(why), verbs.ErrNotSupported)
	}
	return nil
})

// The numbers of eventKind equal the library's.
var _ = [1]struct{}{}[C.RDMA_CM_EVENT_TIMEWAIT_EXIT-eventTimewaitExit]

const (
	// resolveTimeout limits each of the two steps: resolving the address, and the route.
	resolveTimeout = 20 * time.Second
	// One rdma_resolve_addr takes at most resolveFirst, and each further one twice as long, up to resolveMost. If the
	// neighbour answers before the kernel waits for that, the kernel looks again only at the end of this time.
	resolveFirst = 16 * time.Millisecond
	resolveMost  = 4 * time.Second
)

// native implements library.
type native struct{}

func errnoOf(errno C.int) error {
	if errno == 0 {
		return nil
	}
	return syscall.Errno(errno)
}

func (native) newChannel() (channel, error) {
	c, err := C.vc_create_event_channel()
	if c == nil {
		if err == nil {
			err = syscall.ENODEV
		}
		return nil, err
	}
	return nativeChannel{c}, nil
}

type nativeChannel struct{ c *C.struct_rdma_event_channel }

func (ch nativeChannel) fd() int  { return int(ch.c.fd) }
func (ch nativeChannel) destroy() { C.vc_destroy_event_channel(ch.c) }

func (ch nativeChannel) newID(t verbs.QPType) (rawID, error) {
	var datagrams C.int
	if t == verbs.UD {
		datagrams = 1
	}
	var id *C.struct_rdma_cm_id
	if err := errnoOf(C.vc_create_id(ch.c, datagrams, &id)); err != nil {
		return nil, err
	}
	return nativeID{id}, nil
}

func (ch nativeChannel) next(e *rawEvent) (bool, error) {
	var c C.struct_vc_event
	switch err := errnoOf(C.vc_next_event(ch.c, &c)); err {
	case nil:
	case syscall.EAGAIN:
		return false, nil
	default:
		return false, err
	}
	*e = rawEvent{
		kind: eventKind(c.kind), status: int(c.status), id: nativeID{c.id},
		param: verbs.CMParam{
			QPN: uint32(c.param.qpn), QKey: uint32(c.param.qkey),
			ResponderResources: int(c.param.responder_resources), InitiatorDepth: int(c.param.initiator_depth),
			RetryCount: uint8(c.param.retry_count), RNRRetryCount: uint8(c.param.rnr_retry_count), SRQ: c.param.srq != 0,
		},
		address: abi.Address(unsafe.Pointer(&c.address)),
	}
	if c.listener != nil {
		e.listener = nativeID{c.listener}
	}
	if c.param.private_len > 0 {
		e.param.PrivateData = C.GoBytes(unsafe.Pointer(&c.param.private_data[0]), C.int(c.param.private_len))
	}
	return true, nil
}

type nativeID struct{ c *C.struct_rdma_cm_id }

func (id nativeID) destroy() { C.vc_destroy_id(id.c) }

func (id nativeID) migrate(to channel) error {
	return errnoOf(C.vc_migrate_id(id.c, to.(nativeChannel).c))
}

// addrOf converts an address to its C form.
func addrOf(a netip.AddrPort) (c C.struct_vc_addr) {
	addr := a.Addr()
	c.port = C.uint16_t(a.Port())
	c.scope = C.uint32_t(zoneIndex(addr.Zone()))
	if addr.Is4() {
		c.family = syscall.AF_INET
		*(*[4]byte)(unsafe.Pointer(&c.ip)) = addr.As4()
	} else {
		c.family = syscall.AF_INET6
		*(*[16]byte)(unsafe.Pointer(&c.ip)) = addr.As16()
	}
	return c
}

func addrPort(c *C.struct_vc_addr) netip.AddrPort {
	ip := *(*[16]byte)(unsafe.Pointer(&c.ip))
	addr := netip.AddrFrom16(ip).Unmap()
	switch c.family {
	case 0:
		return netip.AddrPort{}
	case syscall.AF_INET:
		addr = netip.AddrFrom4([4]byte(ip[:4]))
	}
	return netip.AddrPortFrom(addr, uint16(c.port))
}

func (id nativeID) bind(a netip.AddrPort) error {
	addr := addrOf(a)
	return errnoOf(C.vc_bind_addr(id.c, &addr))
}

func (id nativeID) resolveAddr(local, remote netip.AddrPort, timeout time.Duration) error {
	to := addrOf(remote)
	from := addrOf(local)
	if local.Addr().IsUnspecified() {
		// Without a scope, the kernel would look for a link-local address on all interfaces.
		from.scope = to.scope
		if local.Port() == 0 {
			from.family = 0
		}
	}
	return errnoOf(C.vc_resolve_addr(id.c, &from, &to, C.int(timeout.Milliseconds())))
}

func (id nativeID) resolveRoute() error {
	return errnoOf(C.vc_resolve_route(id.c, C.int(resolveTimeout.Milliseconds())))
}

func (id nativeID) route() route {
	var c C.struct_vc_route
	C.vc_route_of(id.c, &c)
	return route{
		local: addrPort(&c.local), remote: addrPort(&c.remote), device: C.GoString(&c.device[0]),
		port: int(c.port), sgid: *(*verbs.GID)(unsafe.Pointer(&c.sgid)),
	}
}

func (id nativeID) listen(backlog int) error {
	return errnoOf(C.vc_listen(id.c, C.int(min(backlog, 1<<30))))
}

func paramOf(p *verbs.CMParam) (c C.struct_vc_param) {
	c.qpn, c.qkey = C.uint32_t(p.QPN), C.uint32_t(p.QKey)
	c.responder_resources, c.initiator_depth = C.uint8_t(p.ResponderResources), C.uint8_t(p.InitiatorDepth)
	c.retry_count, c.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
	if p.SRQ {
		c.srq = 1
	}
	// Copy the data: for a pointer, cgo would check the whole object that contains it.
	to := unsafe.Slice((*byte)(unsafe.Pointer(&c.private_data)), len(c.private_data))
	c.private_len = C.uint8_t(copy(to, p.PrivateData))
	return c
}

func (id nativeID) connect(p *verbs.CMParam) error {
	c := paramOf(p)
	return errnoOf(C.vc_connect(id.c, &c))
}

func (id nativeID) accept(p *verbs.CMParam) error {
	c := paramOf(p)
	return errnoOf(C.vc_accept(id.c, &c))
}

func (id nativeID) reject(privateData []byte) error {
	c := paramOf(&verbs.CMParam{PrivateData: privateData})
	return errnoOf(C.vc_reject(id.c, &c))
}

func (id nativeID) establish() error  { return errnoOf(C.vc_establish(id.c)) }
func (id nativeID) received() error   { return errnoOf(C.vc_notify(id.c)) }
func (id nativeID) disconnect() error { return errnoOf(C.vc_disconnect(id.c)) }

func (id nativeID) join(group netip.Addr, sendOnly bool) error {
	addr := addrOf(netip.AddrPortFrom(group, multicastPort))
	only := C.int(0)
	if sendOnly {
		only = 1
	}
	return errnoOf(C.vc_join(id.c, &addr, only))
}

func (id nativeID) leave(group netip.Addr) error {
	addr := addrOf(netip.AddrPortFrom(group, multicastPort))
	return errnoOf(C.vc_leave(id.c, &addr))
}

func (id nativeID) attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	var c C.struct_ibv_qp_attr
	var mask C.int
	if err := errnoOf(C.vc_init_qp_attr(id.c, C.int(to), &c, &mask)); err != nil {
		return verbs.QPAttr{}, 0, err
	}
	return abi.QPAttr(unsafe.Pointer(&c)), abi.Mask(int32(mask)), nil
}
