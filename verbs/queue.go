package verbs

// CQInit configures a completion queue.
type CQInit struct {
	// Capacity is the number of completions that the queue holds at least, from 1
	// to DeviceAttr.MaxCQE. When one more arrives the queue overflows: Poll fails
	// with ErrOverrun from then on, and the queue pairs on it enter the error state.
	Capacity int
	// Fields are what each completion is to be reported with besides a WC. They must be
	// among DeviceAttr.CompletionFields. A queue that has any is an ExtendedCQ, whose
	// Poll still works, and leaves them out.
	Fields WCFields
	// Poller is what polls the queue, such as a progress engine: any comparable value. A device
	// may keep the queues of different pollers apart, so that pollers on different cores do not
	// wait for each other. Poll the queues of one Poller on one goroutine, and give a queue pair
	// queues of one Poller: others work, and are slower. Leave it nil for the queue pairs of
	// datagrams (UD and SRD), and where no poller is special.
	Poller any
}

// WCFields is a set of what an ExtendedCQ reports besides a WC.
type WCFields uint32

// What completions can be reported with (ibv_create_cq_ex(3), efadv_create_cq(3)).
const (
	WCTimestamp WCFields = 1 << iota // WCExtra.Timestamp
	WCWallClock                      // WCExtra.WallClock
	WCSource                         // WCExtra.SourceAH and SourceGID
)

// WCExtra is what an ExtendedCQ reports beside a WC. Fields that the queue was not made
// for are zero. On adapters, so are the times of a completion that has failed.
type WCExtra struct {
	// Timestamp is when the device has made the completion, in ticks of its clock
	// (DeviceAttr.ClockFrequency).
	Timestamp uint64
	// WallClock is the same in nanoseconds since 1970.
	WallClock uint64
	// SourceAH is the number of the address handle by which the sender of a message
	// on an SRD queue pair can be answered (NumberedAH), or NoAH where this end has
	// none that leads there.
	SourceAH uint16
	// SourceGID is the sender's GID, where SourceAH is NoAH; zero where the device does
	// not know it.
	SourceGID GID
}

// NoAH is the number of no address handle.
const NoAH = 0xffff

// ExtendedCQ is a completion queue that reports more than a WC has. Those that were
// made with CQInit.Fields are.
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
	// Arm asks for one call of the function that was given to OnCompletion, at
	// the next completion (IBTA 11.2.8.5). With solicitedOnly, only completions
	// of messages sent with FlagSolicited, and failed ones, count. It returns
	// false if the queue holds completions already: then nothing is armed, and
	// the caller polls.
	Arm(solicitedOnly bool) (bool, error)
	// OnCompletion sets the function called when an armed queue gets a
	// completion. It must be set before the first Arm and not afterwards.
	OnCompletion(notify func())
	// Close destroys the queue. While queue pairs use it, it fails with an
	// error that matches ErrInUse.
	Close() error
}

// SRQInit configures a shared receive queue.
type SRQInit struct {
	MaxWR  int // receives outstanding at a time, at least 1
	MaxSGE int // scatter-gather entries of each; zero means 1
	// Poller is the CQInit.Poller of the queues of its queue pairs. Queue pairs for datagrams
	// need nil.
	Poller any
}

// SRQ is a shared receive queue.
type SRQ interface {
	// PostRecv posts receive requests in order and returns how many were taken.
	// It stops at the first bad one, with an error that says which and why.
	PostRecv(wrs []RecvWR) (int, error)
	// SetLimit arms EventSRQLimitReached for when fewer than limit receives are
	// left. A limit above SRQInit.MaxWR fails with ErrInvalid; 0 disarms.
	SetLimit(limit int) error
	// Close destroys the queue. While queue pairs use it, it fails with an error
	// that matches ErrInUse. Receives that are left in it are dropped, and their
	// memory is the caller's again.
	Close() error
}

// QPType is a transport service (IBTA 9.2).
type QPType int

// The transport services.
const (
	RC QPType = iota // reliable connection
	UC               // unreliable connection
	UD               // unreliable datagram
	// SRD is the scalable reliable datagram of Amazon's EFA (efadv_create_qp_ex(3)): one
	// queue pair talks to any number of peers, reliably, at most once, and in no order.
	// It has the states of UD, and each request names its peer as a datagram does. What
	// it can do is in DeviceAttr.SRD.
	SRD
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
	// AdaptiveRetransmission has the device measure the round trip of an RC queue
	// pair (as TCP does, RFC 6298) and choose by it when a request is repeated and
	// when it fails with StatusRetryExceeded, instead of by QPAttr.Timeout and
	// RetryCount. Devices that cannot, such as adapters, go by those two as ever, so
	// set them all the same. RNRRetry holds in any case.
	//
	// On the software device the first repetition follows about two round trips
	// after a loss that nothing else shows. A request fails when the peer has been
	// silent for 4 s, or has not taken its oldest packet for 30 s though it responds
	// to others; time in which this process stood still does not count.
	//
	// False: Timeout and RetryCount as IBTA 9.7.6.1.3 and 9.7.5.1.3 have them.
	AdaptiveRetransmission bool
	// UnsolicitedWriteRecv has writes with immediate that come to an SRD queue pair
	// consume no receive (SRDAttr.UnsolicitedWriteRecv). Their completions are marked
	// Unsolicited, and have the ID 0. Both ends have to set it.
	UnsolicitedWriteRecv bool
}

// QPAttrMask says which attributes of a QPAttr a Modify sets.
type QPAttrMask uint32

// The attributes that Modify can set. Which are required and which optional in
// a transition is in IBTA 11.2.4.2, table 91, and in ibv_modify_qp(3).
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

// QPAttr holds the attributes of a queue pair.
type QPAttr struct {
	State     QPState     // the one to enter, or the present one
	PKeyIndex int         // into the port's P_Key table, from 0
	Port      int         // from 1
	Access    Access      // what the peer may do
	QKey      uint32      // that datagrams must carry to be taken (UD, SRD)
	Address   AddressAttr // the way to the peer
	PathMTU   MTU         // bytes of payload in one packet
	// Timeout t is the local acknowledge timeout: 4.096 µs × 2^t; 0 waits for
	// ever, 31 is the largest (IBTA 9.7.6.1.3). Not used where the device adapts
	// (QPInit.AdaptiveRetransmission), nor is RetryCount.
	Timeout uint8
	// RetryCount is how often a request that got no answer, or a sequence NAK,
	// is repeated before it fails: 0 to 7.
	RetryCount uint8
	// RNRRetry is how often a request that met no receive is repeated: 0 to 6,
	// and 7 for ever. SRD has it where SRDAttr.RNRRetry is set.
	RNRRetry uint8
	// MinRNRTimer is the code (0 to 31) of the time that a peer has to wait before it
	// sends again, when no receive was posted (IBTA 9.7.5.2.8, table 46).
	MinRNRTimer       uint8
	RQPSN             uint32 // first packet sequence number expected, 24 bits
	SQPSN             uint32 // first packet sequence number sent, 24 bits
	DestQPN           uint32 // 24 bits
	MaxInitReadAtomic int    // reads and atomics outstanding as requester
	MaxDestReadAtomic int    // reads and atomics accepted as responder
}

// AddressAttr is the way to a peer.
type AddressAttr struct {
	DGID         GID    // the peer's
	SGIDIndex    int    // of the own GID, in the port's table
	Port         int    // local port; zero means the queue pair's, or 1 for an AH
	SL           uint8  // service level; on no packet without a VLAN tag
	HopLimit     uint8  // zero means 64, or 1 to a multicast group; RC on adapters has the route's
	TrafficClass uint8  // DSCP and ECN on RoCEv2
	FlowLabel    uint32 // 20 bits
	DLID         uint16 // InfiniBand only
	// UDPPort is the peer's port where it is not 4791; zero means 4791. Only
	// the software device takes another.
	UDPPort uint16
	// SourceUDPPort is the port that the peer's packets come from (GIDEntry.SourceUDPPort).
	// The software device takes them from no other; of UD, as long as there is an address
	// handle that names it, and those of the queue pair SourceQPN. Zero: a reliable
	// connection learns it from its first packet. Adapters do not look at it.
	SourceUDPPort uint16
	// SourceQPN is the number of the peer's queue pair in an address handle that has
	// SourceUDPPort.
	SourceQPN uint32
}

// AH is an address handle: the way of datagrams to a peer.
type AH interface {
	// Close destroys the handle. Datagrams with it must have completed; requests of SRD
	// queue pairs that have not fail.
	Close() error
}

// NumberedAH is an address handle that receive completions can name
// (WCExtra.SourceAH). Those of devices with SRD are.
type NumberedAH interface {
	// Number is the same for all handles of the device that lead to the same peer.
	Number() uint16
}

// QP is a queue pair.
type QP interface {
	// Num is the queue pair number, 24 bits.
	Num() uint32
	// Type is the transport service.
	Type() QPType
	// Modify changes attributes and state (IBTA 11.2.4.2). A refused change
	// changes nothing, and its error names the attribute at fault.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns the attributes and the present state.
	Query() (QPAttr, error)
	// PostSend posts send requests in order and returns how many were taken.
	// It stops at the first bad one, with an error that says which and why. A request is
	// outstanding until its completion has been polled or, if it has none, that of a later
	// request (IBTA 10.8.6); when QPInit.MaxSendWR are, PostSend fails with ErrQueueFull.
	// So a program that never asks for a completion cannot go on for ever.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv posts receive requests likewise: each is outstanding until its completion has
	// been polled. A queue pair with a shared receive queue refuses it.
	PostRecv(wrs []RecvWR) (int, error)
	// Close destroys the queue pair, which is not attached to multicast groups any more.
	// Completions of requests still outstanding are dropped; once it has returned, their memory is the caller's again.
	// After an error that is so only where it matches ErrNoDevice: the device is gone.
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
	// OpSendInvalidate is a send that takes away SendWR.InvalidateRKey, a key of the
	// peer's, as the peer's own OpLocalInvalidate would (IBTA 9.4.1.1.3). Reads by that
	// key that were posted before it need a fence. A key that cannot be taken away fails
	// it, and the connection. It is for RC.
	OpSendInvalidate
	// OpLocalInvalidate ends what SendWR.InvalidateRKey, a key of this end's, grants
	// (IBTA 10.6.5). The key is that of a window of type 2, bound on this queue pair; any
	// other fails the request with StatusMemoryWindowBindError. Once it has completed, the
	// device neither reads nor writes memory by the key.
	OpLocalInvalidate
	// OpBindMW binds a memory window, as SendWR.Bind says (IBTA 10.6.7.2.2).
	OpBindMW
)

// SendFlags qualify a send request.
type SendFlags uint32

// The send flags.
const (
	// FlagSignaled asks for a completion. A request without it completes
	// silently, unless it fails or its queue pair signals all.
	FlagSignaled SendFlags = 1 << iota
	// FlagSolicited marks the message as one that wakes a peer armed for
	// solicited completions only.
	FlagSolicited
	// FlagFence holds the request back until all earlier reads and atomics on
	// this queue pair are complete (IBTA 10.8.3.3).
	FlagFence
	// FlagInline takes the data at the time of posting: the memory need not be
	// registered and is free again when PostSend returns.
	FlagInline
)

// SendWR is a send request. The slice of entries is read during PostSend only.
type SendWR struct {
	ID    uint64    // given back in the completion
	Op    Opcode    // what to do
	Flags SendFlags // how

	SGL        []SGE  // for reads and atomics, where the result goes
	Imm        uint32 // host byte order
	RemoteAddr uint64 // for writes, reads and atomics
	RKey       uint32 // of the peer's region that RemoteAddr is in
	CompareAdd uint64 // the value to compare with, or to add
	Swap       uint64 // the value to put in its place

	AH         AH     // for datagrams and SRD: the way to the peer
	RemoteQPN  uint32 // for datagrams and SRD: the number of its queue pair
	RemoteQKey uint32 // for datagrams and SRD: the Q_Key of that queue pair

	InvalidateRKey uint32  // for OpSendInvalidate and OpLocalInvalidate
	Bind           *MWBind // for OpBindMW; read during PostSend only
}

// RecvWR is a receive request. The slice of entries is read during PostRecv only.
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
)

// WC is a completion. When Status is not StatusSuccess only ID, Status,
// VendorError and QPN hold (ibv_poll_cq(3)).
type WC struct {
	ID          uint64   // that of the request
	Status      Status   // how it ended
	Opcode      WCOpcode // what completed
	VendorError uint32   // the device's own code; zero if it has none
	Bytes       uint32   // received, read, or placed by a write with immediate
	HasImm      bool     // the message carried immediate data
	Imm         uint32   // that data, host byte order
	QPN         uint32   // the local queue pair
	SrcQPN      uint32   // for datagrams: the queue pair that sent it
	// HasGRH: for datagrams, a 40-byte GRH precedes the data in the receive. Bytes
	// counts the GRH. On RoCEv2 it is the IP header, an IPv4 one in the last 20 of the
	// 40 bytes (annex A17).
	HasGRH bool
	// Unsolicited: a write with immediate has consumed no receive
	// (QPInit.UnsolicitedWriteRecv).
	Unsolicited bool
	SL          uint8 // for datagrams: the service level that it came with (InfiniBand only)
	// InvalidatedRKey is the key that a send with invalidate has taken away; zero: none.
	InvalidatedRKey uint32
	SLID            uint16 // for datagrams: where it came from (InfiniBand only)
	// SrcUDPPort is the port by which the sender of a datagram is reached, where it is
	// not 4791; zero means 4791 (software device only).
	SrcUDPPort uint16
}
