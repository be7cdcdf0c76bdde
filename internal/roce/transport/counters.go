package transport

// Counters counts what queue pairs do. The names are those under which the
// kernel's soft-RoCE driver shows the same counts.
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
	DatagramsDropped    uint64 // for want of a receive that takes them
	QKeyViolations      uint64
}
