package verbs

import (
	"bytes"
	"fmt"
	"net/netip"
	"unicode"
	"unicode/utf8"
)

// CMDevice is a Device with a connection manager, which connects queue pairs by
// address and port (IBTA chapter 12, annex A11; rdma_cm(7)).
type CMDevice interface {
	// OpenCM opens a connection manager. It passes each event to handle, one at a time, under
	// the rules for functions that a driver calls. Several can be open; each sees its own IDs
	// only. The error matches ErrNotSupported where the machine lacks what a connection
	// manager needs.
	OpenCM(handle func(CMEvent)) (CM, error)
}

// CM is a connection manager. It connects two programs, and gives each the attributes with
// which to move its queue pair; the queue pairs stay the caller's. A connection of RC or UC is
// set up so:
//
//	active                             passive
//	Dial                               Listen
//	← CMResolved
//	make a queue pair
//	Connect                       →    CMConnectRequest, with a new ID
//	                                   make a queue pair, Attr: INIT, RTR, RTS
//	← CMConnectResponse           ←    Accept, or Reject
//	Attr: INIT, RTR, RTS
//	Establish                     →    CMEstablished
//	Disconnect, by either end     ↔    CMDisconnected, at both
//	← CMTimewaitExit                   CMTimewaitExit →
//
// UD has one request and one response, from which the active end learns the number and Q_Key
// of a queue pair (service ID resolution, IBTA 12.11): Connect, then Accept or Reject, then
// CMEstablished at the active end only.
type CM interface {
	// Listen accepts requests for an address.
	Listen(CMListen) (CMListener, error)
	// Dial makes an ID, and finds in the background the device's port and GID that lead to the
	// address. CMResolved or CMFailed reports the outcome; before that, CMUnresolved may come, any
	// number of times.
	Dial(CMDial) (CMID, error)
	// Close closes all IDs and listeners. After it has returned, handle is not running and
	// will not run again. It may have to wait for peers that do not answer: Linux gives up
	// after 17 s with usual settings.
	Close() error
}

// CMListen configures a listener.
type CMListen struct {
	// Addr is the local address. The unspecified address means all addresses of the device.
	// With port 0 the manager chooses a port.
	Addr netip.AddrPort
	// Type is the transport service. RC and UC share the ports of RDMA_PS_TCP, UD has
	// those of RDMA_PS_UDP.
	Type QPType
	// Backlog is the number of requests that may wait to be accepted or rejected; zero means
	// 1,024. Further requests are dropped, and the peer repeats them. On the software device this
	// limit is for each address. All addresses together have twice Backlog places; an address may
	// take one while it holds fewer than are free. The IPv6 addresses of a /64 network count as one.
	Backlog int
	// MTU is the largest payload of a packet of a connection, in bytes. Requests for a larger
	// MTU are rejected with CMRejectInvalidMTU, which carries this one. Zero: the port's. Only
	// managers of devices with DeviceAttr.CMPathMTU use it.
	MTU MTU
}

// CMListener accepts requests. Each is reported as a CMConnectRequest.
type CMListener interface {
	// Addr is the address on which it listens, with the port that was chosen.
	Addr() netip.AddrPort
	// Close stops accepting requests. The IDs of requests already reported stay.
	Close() error
}

// CMDial names the address to connect to.
type CMDial struct {
	Addr netip.AddrPort // the listener's
	// Local is an address of the device. The route chooses an address that is unspecified or
	// not valid, and the manager chooses port 0.
	Local netip.AddrPort
	Type  QPType // the transport service
	// UDPPort is the UDP port of the peer's device; zero means 4791. Only the software device
	// accepts another port.
	UDPPort uint16
	// MTU is the largest payload of a packet of the connection, in bytes. Zero: the port's.
	// Only managers of devices with DeviceAttr.CMPathMTU use it; with others, Attr has the MTU
	// of the network interface.
	MTU MTU
}

// CMID is one end of a connection that is being set up, established, or going down: a
// communication ID (IBTA 12.6; rdma_cm_id of librdmacm). A call that is not possible in its
// present phase fails with an error that matches ErrState.
type CMID interface {
	// LocalAddr is this end's address. It is known from CMResolved on, or from the request.
	LocalAddr() netip.AddrPort
	// RemoteAddr is the peer's address.
	RemoteAddr() netip.AddrPort
	// PortGID is the device's port, from 1, and the index in its GID table of the GID that the
	// connection uses. They are known from CMResolved on, or from the request.
	PortGID() (port, sgidIndex int)
	// Attr returns the arguments of Modify that move the connection's queue pair to a state:
	// QPInitialized, QPReadyToReceive or QPReadyToSend (rdma_init_qp_attr(3)). The caller adds
	// the access rights and, for UD, the Q_Key.
	Attr(QPState) (QPAttr, QPAttrMask, error)
	// Connect sends the request.
	Connect(CMParam) error
	// Accept accepts a request. The queue pair must be able to receive.
	Accept(CMParam) error
	// Reject rejects a request, or a response, with at most 148 bytes of private data
	// (136 for UD).
	Reject(privateData []byte) error
	// Establish answers a response: the peer may send from then on. The queue pair must be in
	// QPReadyToSend.
	Establish() error
	// Received reports that a packet has come to the queue pair of an accepted request
	// (EventCommEstablished). It replaces an Establish message that was lost (IBTA 12.9.6).
	Received() error
	// Disconnect asks the peer to end an established connection, or answers the peer's request
	// to end it. The caller moves its queue pair to the state QPError.
	Disconnect() error
	// Close abandons whatever is under way, and reports nothing more of this ID. It sends the
	// peer the message that the protocol has for this, if any, and does not wait for an
	// answer. Do not use the number of the queue pair for another connection before
	// CMTimewaitExit.
	Close() error
}

// CMParam is the content of a request or an acceptance.
type CMParam struct {
	QPN uint32 // of the queue pair, 24 bits
	// PrivateData is for the peer's application: at most 56 bytes in a request and 196 in an
	// acceptance; for UD, 180 and 136.
	PrivateData []byte
	// ResponderResources is the number of the peer's reads and atomics that the queue pair
	// takes at a time, InitiatorDepth the number that it has outstanding itself. In an
	// acceptance neither exceeds what the request offers.
	ResponderResources, InitiatorDepth int
	RetryCount                         uint8  // as in QPAttr; the peer's in a request
	RNRRetryCount                      uint8  // as in QPAttr
	SRQ                                bool   // the queue pair has a shared receive queue
	QKey                               uint32 // of a UD queue pair; zero means that of RDMA_PS_UDP
}

// CMEventType is the kind of an event of a connection manager.
type CMEventType int

// The events of a connection manager.
const (
	CMResolved        CMEventType = iota + 1 // a Dial has found a port and GID: Connect
	CMConnectRequest                         // a request has come, with a new ID: Accept or Reject
	CMConnectResponse                        // the peer has accepted: Establish
	CMEstablished                            // the connection can be used
	CMFailed                                 // the connection was not set up: Err says why
	CMDisconnected                           // the connection has ended, or the peer wants to end it
	CMTimewaitExit                           // the number of the queue pair may be used again
	CMAddressChanged                         // the local address has moved: end the connection
	CMDeviceRemoved                          // the device is gone: close everything
	CMMulticastJoined                        // messages can be sent to the group, and queue pairs attached to it
	CMMulticastFailed                        // the group cannot be joined, or is lost: Err says why
	CMUnresolved                             // a Dial goes on without a port and GID: Err says why
)

// CMEvent is an event of a connection manager. Fields that do not apply to its type are zero.
type CMEvent struct {
	Type     CMEventType // what happened
	ID       CMID        // the connection it happened to
	Listener CMListener  // the listener of a request
	// Param is the peer's. The receiver may keep PrivateData; zeroes may follow it, since the
	// messages do not carry its length. A CMDisconnected has the private data with which the peer
	// has asked to end the connection; only the software device can send that.
	Param   CMParam
	Address AddressAttr // for UD: the address of the peer's queue pair, or of the group
	Err     error       // of CMFailed and CMUnresolved, a *CMError, and of CMMulticastFailed
	// Multicast is the membership of a CMMulticastJoined or CMMulticastFailed, or of a
	// CMAddressChanged or CMDeviceRemoved that has no ID. Messages to the group go to
	// Param.QPN, with Param.QKey.
	Multicast CMMulticast
}

// CMStep is what a connection manager was doing when it failed.
type CMStep int

// The steps.
const (
	CMStepResolve CMStep = iota + 1 // finding a route to an address
	CMStepConnect                   // waiting for the answer to a request
	CMStepAccept                    // waiting for the answer to an acceptance
)

// CMRejectReason is the peer's reason for rejecting (IBTA 12.6.7.2).
type CMRejectReason int

// The common reasons.
const (
	CMRejectNoQP          CMRejectReason = 1
	CMRejectNoResources   CMRejectReason = 3
	CMRejectTimeout       CMRejectReason = 4
	CMRejectUnsupported   CMRejectReason = 5
	CMRejectInvalidCommID CMRejectReason = 6
	CMRejectInvalidMTU    CMRejectReason = 26
	// CMRejectInvalidServiceID: no program listens on that port.
	CMRejectInvalidServiceID CMRejectReason = 8
	// CMRejectStaleConnection: the peer takes the queue pair for connected, or just
	// disconnected.
	CMRejectStaleConnection CMRejectReason = 10
	// CMRejectConsumer: the peer's application has called Reject.
	CMRejectConsumer CMRejectReason = 28
)

// CMError says why a connection was not set up.
type CMError struct {
	Step   CMStep         // what was under way
	Local  netip.AddrPort // this end's address
	Remote netip.AddrPort // the peer's
	// Reason is the peer's if the peer has rejected, and otherwise zero.
	Reason CMRejectReason
	// PrivateData is from the peer's application, with CMRejectConsumer. The message does not
	// carry its length: zeroes may follow.
	PrivateData []byte
	// MTU is the path MTU that the peer accepts, if it has named one in a CMRejectInvalidMTU;
	// otherwise zero.
	MTU MTU
	// Err is the cause: ErrRejected, ErrNotListening, ErrUnreachable, ErrNoRoute, or an error
	// of the operating system.
	Err error
}

// Error names the step, the known addresses, and the cause, with the peer's PrivateData if that is text.
func (e *CMError) Error() string {
	s := fmt.Sprintf("%v %v", e.Step, e.Remote)
	if a := e.Local.Addr(); a.IsValid() && !a.IsUnspecified() {
		s += fmt.Sprintf(" from %v", e.Local)
	}
	s += fmt.Sprintf(": %v", e.Err)
	if e.Reason != 0 && e.Reason != CMRejectInvalidServiceID {
		s += fmt.Sprintf(": %v", e.Reason)
	}
	text := bytes.TrimRight(e.PrivateData, "\x00")
	if len(text) > 0 && utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s += fmt.Sprintf(", which says %q", text)
	}
	return s
}

// Unwrap returns Err.
func (e *CMError) Unwrap() error { return e.Err }
