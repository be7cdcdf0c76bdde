package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

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
func (c *Counters) Add(o *Counters) { counters.Add(c, o) }

// counted is what a queue pair counts for itself. Resets do not change it. It is among the fields
// that every packet needs.
type counted struct {
	sentBytes, sentMessages         uint64
	receivedBytes, receivedMessages uint64
	heardAt                         time.Duration // when the latest packet came; zero: none has
	retransmissions                 uint64
	rnrReceived, rnrSent            uint64
}

// noteSent counts a request that is complete.
func (t *counted) noteSent(op verbs.Opcode, length uint32) {
	t.sentMessages++
	switch op {
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		t.receivedBytes += uint64(length)
	default:
		t.sentBytes += uint64(length)
	}
}

// noteAnswered counts a request of the peer whose response has payload.
func (t *counted) noteAnswered(n uint32) {
	t.receivedMessages++
	t.sentBytes += uint64(n)
}

// noteReceived counts a packet of a request of the peer.
func (t *counted) noteReceived(n uint32, last bool) {
	t.receivedBytes += uint64(n)
	if last {
		t.receivedMessages++
	}
}

// noteRetransmission counts that requests are sent again.
func (q *QP) noteRetransmission() {
	q.counters.CompleterRetries++
	q.retransmissions++
}

// OwnCounters returns the counters of the queue pair, without its path.
func (q *QP) OwnCounters(now time.Duration) verbs.QPCounters {
	c := verbs.QPCounters{
		SentBytes: q.sentBytes, ReceivedBytes: q.receivedBytes, SentMessages: q.sentMessages, ReceivedMessages: q.receivedMessages,
		Retransmissions: q.retransmissions, RNRReceived: q.rnrReceived, RNRSent: q.rnrSent,
		SendQueue: uint64(q.sq.Len()), RoundTrip: q.Smoothed,
	}
	if !q.rq.shared {
		c.ReceiveQueue = uint64(q.rq.Len())
	}
	if q.reliable && q.sending() {
		c.Unacknowledged, c.Window = uint64(wire.PSNDiff(q.sendPSN, q.unaPSN)), uint64(q.congestionWindow)
	}
	if q.heardAt != 0 {
		c.Silence = max(now-q.heardAt, 0)
	}
	return c
}
