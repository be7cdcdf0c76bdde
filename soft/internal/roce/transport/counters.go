package transport

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
	c.SentPackets += o.SentPackets
	c.ReceivedPackets += o.ReceivedPackets
	c.DuplicateRequests += o.DuplicateRequests
	c.OutOfSequence += o.OutOfSequence
	c.RNRNaksReceived += o.RNRNaksReceived
	c.RNRNaksSent += o.RNRNaksSent
	c.SequenceNaks += o.SequenceNaks
	c.AcksDeferred += o.AcksDeferred
	c.RetryExceeded += o.RetryExceeded
	c.RNRRetryExceeded += o.RNRRetryExceeded
	c.CompleterRetries += o.CompleterRetries
	c.Sends += o.Sends
	c.Receives += o.Receives
	c.RemoteAccessErrors += o.RemoteAccessErrors
	c.RemoteInvalidErrors += o.RemoteInvalidErrors
	c.BrokenMessages += o.BrokenMessages
	c.DatagramsDropped += o.DatagramsDropped
	c.QKeyViolations += o.QKeyViolations
	c.WrongState += o.WrongState
	c.WrongService += o.WrongService
	c.UnexpectedResponses += o.UnexpectedResponses
	c.DuplicatesRefused += o.DuplicatesRefused
	c.RequestsDropped += o.RequestsDropped
	c.AccessesLimited += o.AccessesLimited
	c.ReadsAbandoned += o.ReadsAbandoned
	c.MarkedPackets += o.MarkedPackets
	c.NotificationsSent += o.NotificationsSent
	c.NotificationsHandled += o.NotificationsHandled
	c.NotificationsIgnored += o.NotificationsIgnored
}
