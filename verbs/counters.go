package verbs

import "time"

// QPCounters are the counters of a queue pair, or those of several together: sums, and the longest
// RoundTrip and Silence. The tags have the names and texts that exporters show.
type QPCounters struct {
	Path             Path          // of packets now; it can change at any time
	SentBytes        uint64        `counter:"sent_bytes" unit:"bytes" help:"payload sent in requests that are complete, and in responses to reads and atomics"`
	ReceivedBytes    uint64        `counter:"received_bytes" unit:"bytes" help:"payload received in requests of the peer, and by reads and atomics that are complete"`
	SentMessages     uint64        `counter:"sent_messages" help:"requests of this end that have completed with success"`
	ReceivedMessages uint64        `counter:"received_messages" help:"requests of the peer that were executed"`
	Retransmissions  uint64        `counter:"completer_retry_err" help:"times that requests were sent again, after a time-out or a gap"`
	RNRReceived      uint64        `counter:"rcvd_rnr_err" help:"receiver not ready: received, since the peer has no receive posted"`
	RNRSent          uint64        `counter:"send_rnr_err" help:"receiver not ready: sent, since this end has no receive posted"`
	SendQueue        uint64        `gauge:"send_queue" help:"requests that are posted and not complete"`
	ReceiveQueue     uint64        `gauge:"receive_queue" help:"receives that are posted and have taken no message; those of shared receive queues do not count"`
	Unacknowledged   uint64        `gauge:"unacknowledged_packets" help:"packets under way: sent and not acknowledged, and responses asked for"`
	Window           uint64        `gauge:"congestion_window_packets" help:"most packets that may be under way"`
	RoundTrip        time.Duration `gauge:"round_trip" help:"smoothed round trip (RFC 6298); zero while none was measured"`
	Silence          time.Duration `gauge:"silence" help:"time since the latest packet of the peer; zero if none has come, and for datagrams"`
}
