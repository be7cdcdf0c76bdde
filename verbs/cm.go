package verbs

import (
	"fmt"
	"net/netip"
)

// CMDevice is a Device with a connection manager, which connects queue pairs by
// address and port (IBTA chapter 12, annex A11; rdma_cm(7)).
type CMDevice interface {
	// OpenCM opens a connection manager, which reports what happens to handle, one
	// event at a time, under the rules for functions that a driver calls. Several can
	// be open; each sees its own IDs only. The error matches ErrNotSupported where the
	// machine lacks what it needs.
	OpenCM(handle func(CMEvent)) (CM, error)
}

// CM is a connection manager. It brings two programs together, and hands out the
// attributes with which each of them moves its queue pair; the queue pairs stay the
// caller's. A connection of RC or UC comes about so:
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
// For UD it is one request and one response, by which the active end learns the
// number and Q_Key of a queue pair (service ID resolution, IBTA 12.11): Connect, then
// Accept or Reject, then CMEstablished at the active end alone.
type CM interface {
	// Listen takes requests that come to an address.
	Listen(CMListen) (CMListener, error)
	// Dial makes an ID, and resolves in the background by which of the device's ports
	// and GIDs the address is reached. CMResolved or CMFailed reports the outcome.
	Dial(CMDial) (CMID, error)
	// Close closes all IDs and listeners. After it has returned, handle is not
	// running and will not run again. It may have to wait for peers that do not answer:
	// Linux gives up after 17 s with usual settings.
	Close() error
}

// CMListen says what a listener takes.
type CMListen struct {
	// Addr is the local address. The unspecified address stands for all of the
	// device's, port 0 for one that the manager chooses.
	Addr netip.AddrPort
	// Type is the transport service. RC and UC share the ports of RDMA_PS_TCP, UD has
	// those of RDMA_PS_UDP.
	Type QPType
	// Backlog is how many requests may wait to be accepted or rejected; zero means
	// 1,024. Those beyond it are dropped, and the peer repeats them.
	Backlog int
	// MTU is the most bytes in a packet of a connection. Requests for more are rejected with
	// CMRejectInvalidMTU, which names it. Zero: the port's. Only managers of devices with
	// DeviceAttr.CMPathMTU look at it.
	MTU MTU
}

// CMListener takes requests. Each is a CMConnectRequest.
type CMListener interface {
	// Addr is the address that it listens on, with the port that was chosen.
	Addr() netip.AddrPort
	// Close takes no more requests. IDs of those that were reported stay.
	Close() error
}

// CMDial says whom to reach.
type CMDial struct {
	Addr netip.AddrPort // the listener's
	// Local is of the device. An address that is unspecified or not valid is chosen by
	// the route, port 0 by the manager.
	Local netip.AddrPort
	Type  QPType // the transport service
	// UDPPort is the port of the peer's device where it is not 4791; zero means 4791.
	// Only the software device takes another.
	UDPPort uint16
	// MTU is the most bytes in a packet of the connection. Zero: the port's. Only managers
	// of devices with DeviceAttr.CMPathMTU look at it; with others, Attr has what the
	// network interface allows.
	MTU MTU
}

// CMID is one end of a connection in the making, established, or going down: a
// communication ID (IBTA 12.6; rdma_cm_id of librdmacm). Calls that are not possible
// in its present phase fail with an error that matches ErrState.
type CMID interface {
	// LocalAddr is this end's address. It is known from CMResolved on, or from the request.
	LocalAddr() netip.AddrPort
	// RemoteAddr is the peer's address.
	RemoteAddr() netip.AddrPort
	// PortGID is the device's port, from 1, and the index of the GID in its table,
	// that the connection uses. They are known from CMResolved on, or from the request.
	PortGID() (port, sgidIndex int)
	// Attr returns what Modify takes to move the connection's queue pair to a state:
	// QPInitialized, QPReadyToReceive or QPReadyToSend (rdma_init_qp_attr(3)). The
	// access rights and, for UD, the Q_Key are the caller's to add.
	Attr(QPState) (QPAttr, QPAttrMask, error)
	// Connect sends the request.
	Connect(CMParam) error
	// Accept accepts a request. The queue pair must be able to receive.
	Accept(CMParam) error
	// Reject rejects a request, or a response, with at most 148 bytes of private data
	// (136 for UD).
	Reject(privateData []byte) error
	// Establish answers a response: from now on the peer may send. The queue pair must
	// be in QPReadyToSend.
	Establish() error
	// Received reports that a packet has come to the queue pair of a request that was
	// accepted (EventCommEstablished), for an Establish that was lost (IBTA 12.9.6).
	Received() error
	// Disconnect asks the peer to end an established connection, or answers that it
	// has asked. The caller moves its queue pair to the state QPError.
	Disconnect() error
	// Close abandons whatever is under way, and reports nothing more of this ID. The
	// peer is told where the protocol has a message for it, and not waited for. The number
	// of the queue pair is not to be used for another connection before CMTimewaitExit.
	Close() error
}

// CMParam holds what one end tells the other in a request or an acceptance.
type CMParam struct {
	QPN uint32 // of the queue pair, 24 bits
	// PrivateData is for the peer's application: at most 56 bytes in a request, 196
	// in an acceptance; for UD 180 and 136.
	PrivateData []byte
	// ResponderResources is how many reads and atomics of the peer's the queue pair
	// takes at a time, InitiatorDepth how many it has outstanding itself. In an
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
	CMResolved        CMEventType = iota + 1 // a Dial has found its way: Connect
	CMConnectRequest                         // a request has come, with a new ID: Accept or Reject
	CMConnectResponse                        // the peer has accepted: Establish
	CMEstablished                            // the connection can be used
	CMFailed                                 // it has not come about: Err says why
	CMDisconnected                           // it has ended, or the peer wants it to
	CMTimewaitExit                           // the number of the queue pair may be used again
	CMAddressChanged                         // the local address has moved: the connection should end
	CMDeviceRemoved                          // the device is gone: close everything
	CMMulticastJoined                        // a group can be sent to, and attached to
	CMMulticastFailed                        // it cannot be joined, or is lost: Err says why
)

// CMEvent is an event of a connection manager. Fields that its type does not concern
// are zero.
type CMEvent struct {
	Type     CMEventType // what has happened
	ID       CMID        // that it happened to
	Listener CMListener  // that a request came to
	// Param is what the peer has told. PrivateData is the receiver's to keep, and may be
	// followed by zeroes: the messages do not carry its length.
	Param   CMParam
	Address AddressAttr // for UD: the way to the peer's queue pair, or to the group
	Err     error       // of CMFailed, a *CMError, and of CMMulticastFailed
	// Multicast is the membership that a CMMulticastJoined or CMMulticastFailed is of, and
	// that CMAddressChanged and CMDeviceRemoved happened to where there is no ID.
	// What is sent to the group goes to Param.QPN, with Param.QKey.
	Multicast CMMulticast
}

// CMStep is what a connection manager was doing when it failed.
type CMStep int

// The steps.
const (
	CMStepResolve   CMStep = iota + 1 // finding the way to an address
	CMStepConnect                     // waiting for the answer to a request
	CMStepAccept                      // waiting for the answer to an acceptance
	CMStepListen                      // binding to an address
	CMStepEstablish                   // answering an acceptance
)

// CMRejectReason is the reason for which a peer has rejected (IBTA 12.6.7.2).
type CMRejectReason int

// The reasons that occur in practice. Others print as a number.
const (
	CMRejectNoQP          CMRejectReason = 1
	CMRejectNoResources   CMRejectReason = 3
	CMRejectTimeout       CMRejectReason = 4
	CMRejectUnsupported   CMRejectReason = 5
	CMRejectInvalidCommID CMRejectReason = 6
	CMRejectInvalidMTU    CMRejectReason = 26
	// CMRejectInvalidServiceID: nobody listens on that port.
	CMRejectInvalidServiceID CMRejectReason = 8
	// CMRejectStaleConnection: the peer's end believes that the queue pair is, or was
	// a moment ago, connected.
	CMRejectStaleConnection CMRejectReason = 10
	// CMRejectConsumer: the peer's application has called Reject.
	CMRejectConsumer CMRejectReason = 28
)

// CMError says why a connection has not come about.
type CMError struct {
	Step   CMStep         // what was under way
	Local  netip.AddrPort // this end's address
	Remote netip.AddrPort // the peer's
	// Reason is the peer's, if it has rejected; otherwise zero.
	Reason CMRejectReason
	// PrivateData is what the peer's application has sent with CMRejectConsumer. The
	// message does not carry its length: zeroes may follow.
	PrivateData []byte
	// MTU is the path MTU that the peer takes, where it has rejected with
	// CMRejectInvalidMTU and named it; otherwise zero.
	MTU MTU
	// Err is the cause: ErrRejected, ErrNotListening, ErrUnreachable, ErrNoRoute, or
	// that of the operating system.
	Err error
}

// Error names the step, the addresses as far as they are known, and the cause.
func (e *CMError) Error() string {
	s := fmt.Sprintf("%v %v", e.Step, e.Remote)
	if a := e.Local.Addr(); a.IsValid() && !a.IsUnspecified() {
		s += fmt.Sprintf(" from %v", e.Local)
	}
	s += fmt.Sprintf(": %v", e.Err)
	if e.Reason != 0 && e.Reason != CMRejectInvalidServiceID {
		s += fmt.Sprintf(": %v", e.Reason)
	}
	return s
}

// Unwrap returns Err.
func (e *CMError) Unwrap() error { return e.Err }
