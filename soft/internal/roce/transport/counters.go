package transport

import "reflect"

// Counters counts what queue pairs do. The names are those of the same counts in the kernel's
// soft-RoCE driver.
type Counters struct {
	SentPackets         uint64
	ReceivedPackets     uint64
	DuplicateRequests   uint64
	OutOfSequence       uint64 // requests ahead of the expected one
	RNRNaksReceived     uint64
	RNRNaksSent         uint64
	SequenceNaks        uint64 // received
	AcksDeferred        uint64 // acknowledgements that one later packet covered
	RetryExceeded       uint64
	RNRRetryExceeded    uint64
	CompleterRetries    uint64 // rewinds of a requester
	Sends               uint64
	Receives            uint64
	RemoteAccessErrors  uint64
	RemoteInvalidErrors uint64
	BrokenMessages      uint64 // of an unreliable connection, dropped
	DatagramsDropped    uint64 // because no receive had room for them
	QKeyViolations      uint64

	// Packets that were ignored.
	WrongState          uint64 // in a state that does not accept them
	WrongService        uint64 // of another transport service
	UnexpectedResponses uint64 // that were not awaited
	DuplicatesRefused   uint64 // old reads and atomics that were not executed
	RequestsDropped     uint64 // because too many responses wait
	AccessesLimited     uint64 // because the peer's host tries keys
	ReadsAbandoned      uint64 // responses not sent, because the peer is silent

	MarkedPackets        uint64 // received with "congestion experienced"
	NotificationsSent    uint64 // of congestion
	NotificationsHandled uint64
	NotificationsIgnored uint64
}

// Add adds others to the counters.
func (c *Counters) Add(o *Counters) {
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(o).Elem()
	for i := range to.NumField() {
		to.Field(i).SetUint(to.Field(i).Uint() + from.Field(i).Uint())
	}
}
