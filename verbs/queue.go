package verbs

import "time"

// CQInit configures a completion queue.
type CQInit struct {
	// Capacity is the least number of completions that the queue can hold, from 1 to
	// DeviceAttr.MaxCQE. When one more arrives the queue overflows: Poll fails with ErrOverrun
	// from then on, and the queue pairs on it enter the error state.
	Capacity int
	// Fields are the fields that each completion reports besides a WC. They must be among
	// DeviceAttr.CompletionFields. If there are any, the queue is an ExtendedCQ; its Poll
	// works too, and leaves them out.
	Fields WCFields
	// Poller identifies the poller of the queue, such as a progress engine: any comparable
	// value. A device may keep the queues of different pollers apart, so that pollers on
	// different cores do not wait for each other. Poll the queues of one Poller on one
	// goroutine, and give a queue pair queues of one Poller: other uses work, but are slower.
	// Leave it nil for the queue pairs of datagrams (UD and SRD), for XRCRecv, and where no poller is
	// special.
	Poller any
}

// WCFields is a set of fields that an ExtendedCQ reports besides a WC.
type WCFields uint32

// The fields (ibv_create_cq_ex(3), efadv_create_cq(3)).
const (
	WCTimestamp WCFields = 1 << iota // WCExtra.Timestamp
	WCWallClock                      // WCExtra.WallClock
	WCSource                         // WCExtra.SourceAH and SourceGID
)

// WCExtra is what an ExtendedCQ reports besides a WC. Fields that the queue was not made for
// are zero. On adapters, so are the times of a failed completion.
type WCExtra struct {
	// Timestamp is the time at which the device made the completion, in ticks of its clock
	// (DeviceAttr.ClockFrequency).
	Timestamp uint64
	// WallClock is the same in nanoseconds since 1970.
	WallClock uint64
	// SourceAH is the number of the address handle for the sender of a message on an SRD queue
	// pair (NumberedAH), or NoAH if this end has no such handle.
	SourceAH uint16
	// SourceGID is the sender's GID where SourceAH is NoAH; zero if the device does not know
	// it.
	SourceGID GID
}

// NoAH as the number of an address handle means that there is none.
const NoAH = 0xffff

// ExtendedCQ is a completion queue that reports more than a WC. Queues made with CQInit.Fields
// implement it.
type ExtendedCQ interface {
	// PollExtended is Poll into two slices of the same length.
	PollExtended(wcs []WC, extras []WCExtra) (int, error)
}

// CQ is a completion queue.
type CQ interface {
	// Capacity is the number of completions that the queue holds.
	Capacity() int
	// Poll takes up to len(wc) completions off the queue and returns how many.
	// On the software device it also drives the device.
	Poll(wc []WC) (int, error)
	// Arm asks for one call of the function given to OnCompletion, at the next completion
	// (IBTA 11.2.8.5). With solicitedOnly, only completions of messages sent with
	// FlagSolicited, and failed ones, count. If the queue already holds completions, Arm arms
	// nothing and returns false: the caller polls.
	Arm(solicitedOnly bool) (bool, error)
	// OnCompletion sets the function that is called when an armed queue gets a completion. A call
	// may find the queue empty, since a Poll in between has taken the completion: arm again. Call
	// OnCompletion before the first Arm, and not after.
	OnCompletion(notify func())
	// Close destroys the queue. It fails with an error that matches ErrInUse while queue pairs
	// use the queue.
	Close() error
}

// SRQInit configures a shared receive queue.
type SRQInit struct {
	MaxWR  int // receives outstanding at a time, at least 1
	MaxSGE int // scatter-gather entries of each; zero means 1
	// Poller is the CQInit.Poller of its queue pairs' completion queues. Queue pairs for
	// datagrams need nil.
	Poller any
	// XRCDomain makes an XRC shared receive queue, which is an XRCSRQ. It takes messages that come to
	// the XRCRecv queue pairs of the domain. The keys in them are checked in the queue's protection
	// domain. Poller must be nil.
	XRCDomain XRCDomain
	CQ        CQ // for the completions of an XRC shared receive queue
}

// XRCDevice is a device with extended reliable connections (XRC; IBTA annex A14): reliable
// connections where each request names the shared receive queue that it is for.
type XRCDevice interface {
	// OpenXRCDomain makes a domain without queues and queue pairs.
	OpenXRCDomain() (XRCDomain, error)
}

// XRCDomain is a set of XRC shared receive queues and of the queue pairs that take messages for them.
type XRCDomain interface {
	// Close fails with an error that matches ErrInUse while the domain has queues or queue pairs.
	Close() error
}

// XRCSRQ is a shared receive queue of an XRCDomain.
type XRCSRQ interface {
	// SRQNum is the number by which requests name the queue, 24 bits.
	SRQNum() uint32
}

// SRQ is a shared receive queue.
type SRQ interface {
	// PostRecv posts receive requests in order and returns how many were taken. It stops at
	// the first bad one, with an error that names the request and the reason.
	PostRecv(wrs []RecvWR) (int, error)
	// SetLimit arms EventSRQLimitReached, which comes when fewer than limit receives are left.
	// A limit above SRQInit.MaxWR fails with ErrInvalid; 0 disarms.
	SetLimit(limit int) error
	// Close destroys the queue. It fails with an error that matches ErrInUse while queue pairs
	// use the queue. The receives left in it are dropped, and their memory is the caller's
	// again.
	Close() error
}

// QPType is a transport service (IBTA 9.2).
type QPType int

// The transport services.
const (
	RC QPType = iota // reliable connection
	UC               // unreliable connection
	UD               // unreliable datagram
	// SRD is the scalable reliable datagram of Amazon's EFA (efadv_create_qp_ex(3)): one queue
	// pair talks to any number of peers, reliably, at most once, and in no order. It has the
	// states of UD, and each request names its peer as a datagram does. DeviceAttr.SRD has its
	// capabilities.
	SRD
	// XRCSend is the end of an extended reliable connection that sends requests. It has no receives,
	// and no RecvCQ. Its attributes are those of RC but for MaxDestReadAtomic and MinRNRTimer.
	XRCSend
	// XRCRecv is the other end. It only takes requests, for the shared receive queues of its
	// XRCDomain, and QPInit needs nothing else. Its attributes are those of RC but for RetryCount,
	// RNRRetry and MaxInitReadAtomic.
	XRCRecv
)

// QPState is the state of a queue pair (IBTA 10.3.1).
type QPState int

// The queue pair states.
const (
	QPReset QPState = iota
	QPInitialized
	QPReadyToReceive
	QPReadyToSend
	QPSendQueueDrained
	QPSendQueueError
	QPError
)

// QPInit configures a queue pair.
type QPInit struct {
	Type QPType // the transport service

	SendCQ     CQ   // of the same device; it may be the RecvCQ too
	RecvCQ     CQ   // of the same device
	SRQ        SRQ  // nil: receives are posted to the queue pair itself
	MaxSendWR  int  // send requests outstanding at a time: see QP.PostSend
	MaxRecvWR  int  // receives outstanding at a time; ignored with an SRQ
	MaxSendSGE int  // scatter-gather entries of a send request; zero means 1
	MaxRecvSGE int  // scatter-gather entries of a receive; zero means 1; ignored with an SRQ
	MaxInline  int  // bytes of inline data in one request; zero: none
	SignalAll  bool // every send request generates a completion
	// AdaptiveRetransmission makes the device measure the round trip of an RC queue pair (as
	// TCP does, RFC 6298). It then decides when a request is repeated, and when it fails with
	// StatusRetryExceeded, instead of QPAttr.Timeout and RetryCount. Devices that cannot do
	// this, such as adapters, use those two, so set them all the same. RNRRetry always
	// applies.
	//
	// On the software device the first repetition follows about two round trips after a loss
	// that nothing else shows. A request fails when the peer has been silent for SilenceTimeout,
	// or when the peer responds to others but has not taken this queue pair's oldest packet for 30
	// s (or SilenceTimeout, if that is longer). Time in which this process stood still does not
	// count.
	//
	// False: Timeout and RetryCount apply, as in IBTA 9.7.6.1.3 and 9.7.5.1.3.
	AdaptiveRetransmission bool
	// SilenceTimeout is for devices that adapt: see AdaptiveRetransmission. Zero: 4 s.
	SilenceTimeout time.Duration
	XRCDomain      XRCDomain // for XRCRecv
	// UnsolicitedWriteRecv makes a write with immediate that comes to an SRD queue pair
	// consume no receive (SRDAttr.UnsolicitedWriteRecv). Its completion is marked Unsolicited,
	// and has the ID 0. Both ends have to set it.
	UnsolicitedWriteRecv bool
}

// QPAttrMask is the set of attributes of a QPAttr that Modify sets.
type QPAttrMask uint32

// The attributes that Modify can set. IBTA 11.2.4.2, table 91, and ibv_modify_qp(3) say which
// are required and which optional in a transition.
const (
	QPAttrState QPAttrMask = 1 << iota
	QPAttrPKeyIndex
	QPAttrPort
	QPAttrAccess
	QPAttrQKey
	QPAttrAddress
	QPAttrPathMTU
	QPAttrTimeout
	QPAttrRetryCount
	QPAttrRNRRetry
	QPAttrRQPSN
	QPAttrMaxInitReadAtomic
	QPAttrMaxDestReadAtomic
	QPAttrMinRNRTimer
	QPAttrSQPSN
	QPAttrDestQPN
)

// The attributes that a transition requires, for each transport service: from Reset to
// Init, from Init to RTR (QPReadyToReceive) and from there to RTS (QPReadyToSend), as in
// IBTA 11.2.4.2, table 91, and ibv_modify_qp(3).
const (
	RCToInit = QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrAccess
	RCToRTR  = QPAttrState | QPAttrAddress | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestReadAtomic | QPAttrMinRNRTimer
	RCToRTS  = QPAttrState | QPAttrSQPSN | QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrMaxInitReadAtomic

	UCToInit = RCToInit
	UCToRTR  = QPAttrState | QPAttrAddress | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN
	UCToRTS  = QPAttrState | QPAttrSQPSN

	UDToInit = QPAttrState | QPAttrPKeyIndex | QPAttrPort | QPAttrQKey
	UDToRTR  = QPAttrState
	UDToRTS  = QPAttrState | QPAttrSQPSN

	SRDToInit = UDToInit
	SRDToRTR  = UDToRTR
	SRDToRTS  = UDToRTS
)

// InfiniteRNRRetry is the RNR retry count that means no limit (IBTA 9.7.5.2.8).
const InfiniteRNRRetry = 7

// QPAttr holds the attributes of a queue pair.
type QPAttr struct {
	State     QPState     // the state to enter, or the present one
	PKeyIndex int         // into the port's P_Key table, from 0
	Port      int         // from 1
	Access    Access      // what the peer may do
	QKey      uint32      // the Q_Key of datagrams that are taken (UD, SRD)
	Address   AddressAttr // the peer's address
	PathMTU   MTU         // bytes of payload in one packet
	// Timeout t is the local acknowledge timeout: 4.096 µs × 2^t; 0 waits for ever, 31 is
	// the largest. A device may wait up to four times as long (IBTA 9.7.6.1.3). With
	// QPInit.AdaptiveRetransmission, devices that adapt use neither Timeout nor RetryCount.
	Timeout uint8
	// RetryCount is the number of times that a request is repeated after no answer, or a
	// sequence NAK, before it fails: 0 to 7.
	RetryCount uint8
	// RNRRetry is the number of times that a request is repeated after it met no receive: 0 to
	// 6, or InfiniteRNRRetry. On SRD it applies where SRDAttr.RNRRetry is set.
	RNRRetry uint8
	// MinRNRTimer is the code (0 to 31) of the time that a peer waits before it sends again,
	// when no receive was posted (IBTA 9.7.5.2.8, table 46).
	MinRNRTimer       uint8
	RQPSN             uint32 // first packet sequence number expected, 24 bits
	SQPSN             uint32 // first packet sequence number sent, 24 bits
	DestQPN           uint32 // 24 bits
	MaxInitReadAtomic int    // reads and atomics outstanding as requester
	MaxDestReadAtomic int    // reads and atomics accepted as responder
}

// AddressAttr is the address of a peer, and the path to it.
type AddressAttr struct {
	DGID         GID    // the peer's
	SGIDIndex    int    // index of the own GID in the port's table
	Port         int    // local port; zero means the queue pair's, or 1 for an AH
	SL           uint8  // service level; packets without a VLAN tag do not carry it
	HopLimit     uint8  // zero means 64, or 1 to a multicast group; RC on adapters uses the route's
	TrafficClass uint8  // DSCP and ECN on RoCEv2
	FlowLabel    uint32 // 20 bits
	DLID         uint16 // InfiniBand only
	// UDPPort is the peer's UDP port; zero means 4791. Only the software device accepts
	// another.
	UDPPort uint16
	// SourceUDPPort is the source port of the peer's packets (GIDEntry.SourceUDPPort). The
	// software device takes packets from no other port. On UD that holds while an address
	// handle has it, and for packets of the queue pair SourceQPN. Zero: a reliable connection
	// learns the port from its first packet. Adapters ignore it.
	SourceUDPPort uint16
	// SourceQPN is the number of the peer's queue pair in an address handle that has
	// SourceUDPPort.
	SourceQPN uint32
}

// AH is an address handle: the address of a peer, for datagrams.
type AH interface {
	// Close destroys the handle. Datagrams that use it must have completed; outstanding
	// requests of SRD queue pairs fail.
	Close() error
}

// NumberedAH is an address handle that receive completions can name (WCExtra.SourceAH). The
// handles of devices with SRD implement it.
type NumberedAH interface {
	// Number is the same for all handles of the device for the same peer.
	Number() uint16
}

// QP is a queue pair.
type QP interface {
	// Num is the queue pair number, 24 bits.
	Num() uint32
	// Type is the transport service.
	Type() QPType
	// Modify changes attributes and state (IBTA 11.2.4.2). A refused change
	// changes nothing, and its error names the attribute at fault. A return to Reset
	// drops what was posted; completions that were not polled may be dropped too.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns the attributes and the present state.
	Query() (QPAttr, error)
	// PostSend posts send requests in order and returns how many were taken. It stops at the
	// first bad one, with an error that names the request and the reason. A request is
	// outstanding until its own completion has been polled or, if it has none, that of a later
	// request (IBTA 10.8.6). PostSend fails with ErrQueueFull when QPInit.MaxSendWR requests
	// are outstanding, so a program must ask for a completion from time to time.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv posts receive requests as PostSend does. Each is outstanding until its
	// completion has been polled. A queue pair with a shared receive queue refuses it.
	PostRecv(wrs []RecvWR) (int, error)
	// Close destroys the queue pair, and detaches it from multicast groups. Completions that
	// were not polled are dropped. When Close has returned, the memory of all requests is the
	// caller's again. After an error that holds only if the error matches ErrNoDevice: the device is
	// gone.
	Close() error
}

// Opcode is the operation of a send request.
type Opcode int

// The operations.
const (
	OpSend Opcode = iota
	OpSendImm
	OpWrite
	OpWriteImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	// OpSendInvalidate is a send that invalidates SendWR.InvalidateRKey, a key of the peer's,
	// as the peer's own OpLocalInvalidate would (IBTA 9.4.1.1.3). Earlier reads by that key
	// need a fence. If the key cannot be invalidated, the request and the connection fail. It
	// is for RC.
	OpSendInvalidate
	// OpLocalInvalidate invalidates SendWR.InvalidateRKey, a key of this end (IBTA 10.6.5).
	// The key must be that of a window of type 2 bound on this queue pair; any other fails the
	// request with StatusMemoryWindowBindError. When the request has completed, the device
	// neither reads nor writes memory by the key.
	OpLocalInvalidate
	// OpBindMW binds a memory window, as SendWR.Bind says (IBTA 10.6.7.2.2).
	OpBindMW
	// OpAtomicWrite writes 8 bytes to an address that is a multiple of 8, in one store: nobody
	// sees a part of them (IBTA release 1.5 and later, annex A19). Earlier writes of the queue
	// pair are in memory before them. The peer needs the right to write. The operation counts
	// among the reads and atomics outstanding, and completes when the peer's memory holds the
	// bytes. It is for RC, on devices with DeviceAttr.AtomicWrite.
	OpAtomicWrite

	opcodeCount = iota // for tests: the number of operations above
)

// SendFlags qualify a send request.
type SendFlags uint32

// The send flags.
const (
	// FlagSignaled asks for a completion. A request without it completes
	// silently, unless it fails or its queue pair signals all.
	FlagSignaled SendFlags = 1 << iota
	// FlagSolicited makes the message wake a peer that is armed for solicited completions
	// only.
	FlagSolicited
	// FlagFence holds the request back until all earlier reads, atomics and atomic writes on
	// this queue pair are complete (IBTA 10.8.3.3).
	FlagFence
	// FlagInline copies the data when the request is posted: the memory need not be
	// registered, and may be reused when PostSend returns.
	FlagInline
)

// SendWR is a send request. PostSend reads the slices only during the call.
type SendWR struct {
	ID    uint64    // given back in the completion
	Op    Opcode    // what to do
	Flags SendFlags // how

	SGL        []SGE  // for reads and atomics: where the result goes
	Imm        uint32 // host byte order
	RemoteAddr uint64 // for writes, reads and atomics
	RKey       uint32 // of the peer's region that RemoteAddr is in
	CompareAdd uint64 // the value to compare with, or to add
	Swap       uint64 // the value to put in its place

	AH         AH     // for datagrams and SRD: the address of the peer
	RemoteQPN  uint32 // for datagrams and SRD: the number of its queue pair
	RemoteQKey uint32 // for datagrams and SRD: the Q_Key of that queue pair

	RemoteSRQN uint32 // for XRCSend: the number of the peer's shared receive queue (XRCSRQ)

	InvalidateRKey uint32  // for OpSendInvalidate and OpLocalInvalidate
	Bind           *MWBind // for OpBindMW; read during PostSend only
}

// RecvWR is a receive request. PostRecv reads the slices only during the call.
type RecvWR struct {
	ID  uint64 // given back in the completion
	SGL []SGE  // filled in order
}

// WCOpcode says what completed.
type WCOpcode int

// The completed operations.
const (
	WCSend WCOpcode = iota
	WCWrite
	WCRead
	WCCompareSwap
	WCFetchAdd
	WCRecv
	WCRecvWriteImm // a receive consumed by a write with immediate
	WCLocalInvalidate
	WCBindMW
	WCAtomicWrite

	wcOpcodeCount = iota // for tests: the number of operations above
)

// WC is a completion. If Status is not StatusSuccess, only ID, Status, VendorError and QPN are
// valid (ibv_poll_cq(3)), and on the software device Opcode, which is WCRecv for all failed
// receives.
type WC struct {
	ID          uint64   // the request's ID
	Status      Status   // how it ended
	Opcode      WCOpcode // what completed
	VendorError uint32   // the device's own code; zero if it has none
	Bytes       uint32   // received, read, or placed by a write with immediate
	HasImm      bool     // the message carried immediate data
	Imm         uint32   // that data, host byte order
	QPN         uint32   // the local queue pair
	SrcQPN      uint32   // for datagrams: the queue pair that sent it
	// HasGRH: for datagrams, a 40-byte GRH precedes the data in the receive. Bytes counts the
	// GRH. On RoCEv2 the GRH is the IP header; an IPv4 header is in the last 20 of the 40
	// bytes (annex A17).
	HasGRH bool
	// IPv4: that header is an IPv4 header. Only the software device sets it; ParseGRH finds out
	// by itself.
	IPv4 bool
	// Unsolicited: the completion is of a write with immediate that consumed no receive
	// (QPInit.UnsolicitedWriteRecv).
	Unsolicited bool
	SL          uint8 // for datagrams: the service level in the message (InfiniBand only)
	// InvalidatedRKey is the key that a send with invalidate has invalidated; zero: none.
	InvalidatedRKey uint32
	SLID            uint16 // for datagrams: the sender's LID (InfiniBand only)
	// SrcUDPPort is the UDP port of the sender of a datagram; zero means 4791 (software device
	// only).
	SrcUDPPort uint16
}
