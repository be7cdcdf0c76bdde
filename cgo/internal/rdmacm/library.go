//go:build linux && cgo && verbs

package rdmacm

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// library is the part of librdmacm that this package uses. It has two implementations: native,
// and one for tests without the library. The error of a failed call is or wraps a
// syscall.Errno.
type library interface {
	newChannel() (channel, error)
}

// channel is an event channel.
type channel interface {
	fd() int
	// next takes an event, copies the data that it refers to, and acknowledges it. It
	// returns false if there is no event.
	next(*rawEvent) (bool, error)
	newID(verbs.QPType) (rawID, error)
	// destroy destroys a channel that has no IDs left.
	destroy()
}

// rawID is an identifier of librdmacm. Values are comparable.
type rawID interface {
	bind(netip.AddrPort) error
	listen(backlog int) error
	resolveAddr(local, remote netip.AddrPort, timeout time.Duration) error
	resolveRoute() error
	route() route
	connect(*verbs.CMParam) error
	accept(*verbs.CMParam) error
	reject(privateData []byte) error
	establish() error
	received() error
	disconnect() error
	join(group netip.Addr, sendOnly bool) error
	leave(group netip.Addr) error
	attr(verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
	migrate(channel) error
	destroy()
}

// route is what librdmacm knows of an ID's route.
type route struct {
	local, remote netip.AddrPort
	device        string // empty: none yet
	port          int
	sgid          verbs.GID
}

// eventKind is an enum rdma_cm_event_type.
type eventKind int

const (
	eventAddrResolved eventKind = iota
	eventAddrError
	eventRouteResolved
	eventRouteError
	eventConnectRequest
	eventConnectResponse
	eventConnectError
	eventUnreachable
	eventRejected
	eventEstablished
	eventDisconnected
	eventDeviceRemoval
	eventMulticastJoin
	eventMulticastError
	eventAddrChange
	eventTimewaitExit
)

// rawEvent is an event of librdmacm.
type rawEvent struct {
	kind     eventKind
	status   int               // a negative errno, or the reason of a rejection
	id       rawID             // for a request, its new ID
	listener rawID             // for a request, the ID of the listener
	param    verbs.CMParam     // the peer's parameters
	address  verbs.AddressAttr // for UD and multicast groups
}
