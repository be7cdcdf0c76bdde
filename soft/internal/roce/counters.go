package roce

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// Counters implements verbs.Device. The names up to rdma_recvs are those of the kernel's
// soft-RoCE driver. cm_rx_msgs, cm_tx_msgs, cm_tx_retries and cm_rx_duplicates are those of
// the kernel's connection manager, multicast_xmit_packets and multicast_rcv_packets those of
// ports, and the four for congestion notifications those of Mellanox adapters. The others have
// names of our own.
func (d *Device) Counters() ([]verbs.Counter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.totals()
	var m cm.Counters
	if d.mu.services != nil {
		m = d.mu.services.Counters()
	}
	return counters(&t, d.main.srd.Counters(), m, d.main.multicast), nil
}

// ZeroCounters returns the counters of a device that has just been opened.
func ZeroCounters() []verbs.Counter {
	return counters(&totals{}, srd.Counters{}, cm.Counters{}, multicastCounts{})
}

func counters(t *totals, s srd.Counters, m cm.Counters, multicast multicastCounts) []verbs.Counter {
	c := &t.transport
	list := []verbs.Counter{
		{Name: "sent_pkts", Value: c.SentPackets, Help: "packets sent, on all paths"},
		{Name: "rcvd_pkts", Value: c.ReceivedPackets, Help: "valid packets received, on all paths"},
		{Name: "duplicate_request", Value: c.DuplicateRequests + s.Duplicates, Help: "requests that had been executed before"},
		{Name: "out_of_seq_request", Value: c.OutOfSequence, Help: "requests that arrived before a missing one"},
		{Name: "rcvd_rnr_err", Value: c.RNRNaksReceived + s.NotReadyNaks, Help: "receiver not ready: received, since a peer has no receive posted"},
		{Name: "send_rnr_err", Value: c.RNRNaksSent + s.NotReady, Help: "receiver not ready: sent, since this end has no receive posted"},
		{Name: "rcvd_seq_err", Value: c.SequenceNaks, Help: "sequence NAKs received: the peer misses a packet"},
		{Name: "ack_deferred", Value: c.AcksDeferred, Help: "acknowledgements merged into a later one"},
		{Name: "retry_exceeded_err", Value: c.RetryExceeded, Help: "requests that failed because the peer did not answer"},
		{Name: "retry_rnr_exceeded_err", Value: c.RNRRetryExceeded + s.RNRExceeded, Help: "requests that failed because the peer had no receive"},
		{Name: "completer_retry_err", Value: c.CompleterRetries, Help: "times that requests were sent again, after a time-out or a gap"},
		{Name: "send_err", Value: t.drops.send, Help: "packets that the kernel did not take: no buffer, no route, too large"},
		{Name: "rdma_sends", Value: c.Sends + s.Sends, Help: "sends that were acknowledged"},
		{Name: "rdma_recvs", Value: c.Receives + s.Receives, Help: "receives that took a message"},
		{Name: "resp_remote_access_errors", Value: c.RemoteAccessErrors + s.Access, Help: "requests refused for key, domain, bounds or permission"},
		{Name: "resp_invalid_request_errors", Value: c.RemoteInvalidErrors, Help: "requests refused as invalid"},
		{Name: "rx_icrc_errors", Value: t.drops.badICRC, Help: "packets with a wrong checksum"},
		{Name: "rx_malformed", Value: t.drops.malformed, Help: "packets that are not RoCEv2"},
		{Name: "rx_broken_messages", Value: c.BrokenMessages, Help: "messages dropped on unreliable connections: packet missing, no receive, no right"},
		{Name: "rx_datagrams_dropped", Value: c.DatagramsDropped, Help: "datagrams without a long enough receive"},
		{Name: "rx_qkey_violations", Value: c.QKeyViolations + s.QKey, Help: "datagrams with a wrong Q_Key"},
		{Name: "rx_wrong_peer", Value: t.drops.wrongPeer, Help: "packets for no queue pair, not from its peer, or of another partition"},
		{Name: "rx_wrong_source", Value: t.drops.wrongSource + s.WrongSource, Help: "packets from the peer's address and a port that it does not send from"},
		{Name: "rx_wrong_service", Value: c.WrongService, Help: "packets of another transport service"},
		{Name: "rx_wrong_state", Value: c.WrongState, Help: "packets refused in the queue pair's state"},
		{Name: "rx_unexpected_responses", Value: c.UnexpectedResponses, Help: "responses to nothing outstanding: late, repeated or forged"},
		{Name: "rx_duplicates_refused", Value: c.DuplicatesRefused, Help: "reads and atomics with an old sequence number that repeat no executed one"},
		{Name: "rx_requests_dropped", Value: c.RequestsDropped, Help: "reads and atomics dropped since too many responses of the connection wait; they are repeated"},
		{Name: "rx_accesses_limited", Value: c.AccessesLimited + s.AccessesLimited, Help: "requests dropped since their host tries keys; they are repeated"},
		{Name: "reads_abandoned", Value: c.ReadsAbandoned, Help: "read responses not sent, since the peer had acknowledged none of the last 64 MiB"},
		{Name: "np_ecn_marked_roce_packets", Value: c.MarkedPackets, Help: "packets received with the mark congestion experienced"},
		{Name: "np_cnp_sent", Value: c.NotificationsSent, Help: "congestion notifications sent"},
		{Name: "rp_cnp_handled", Value: c.NotificationsHandled, Help: "congestion notifications, and BECN bits, that slowed a connection"},
		{Name: "rp_cnp_ignored", Value: c.NotificationsIgnored, Help: "congestion notifications, and BECN bits, that slowed none"},
		{Name: "multicast_xmit_packets", Value: multicast.sent, Help: "packets sent to multicast groups"},
		{Name: "multicast_rcv_packets", Value: multicast.received, Help: "packets received from multicast groups"},
		{Name: "rx_socket_drops", Value: t.socketDrops, Help: "packets or trains that the kernel dropped: by the filter, for a full buffer, or for a wrong UDP checksum"},
		{Name: "local_peers", Value: uint64(t.localPeers), Gauge: true, Help: "devices that share memory with this one"},
		{Name: "local_sent_pkts", Value: t.local.Sent, Help: "packets sent through shared memory"},
		{Name: "local_rcvd_pkts", Value: t.local.Received, Help: "packets received through shared memory"},
		{Name: "local_protocol_errors", Value: t.local.Corrupt, Help: "shared memories ended for invalid content"},
		{Name: "local_peers_died", Value: t.local.Died, Help: "processes that died while they shared memory with this device"},
		{Name: "rx_icmp_unreachable", Value: t.unreachable, Help: "reports that nothing listens at a peer's port"},
		{Name: "cm_rx_rate_limited", Value: t.drops.policed, Help: "connection-management messages dropped unread, since too many came"},
		{Name: "rx_passed_on", Value: t.handoffs, Help: "packets that arrived at the wrong shard"},
		{Name: "rx_passed_on_dropped", Value: t.handoffsDropped, Help: "packets that arrived at the wrong shard and were dropped, since 1,024 waited"},
		{Name: "srd_peers", Value: s.Contexts, Gauge: true, Help: "SRD peers that are known"},
		{Name: "srd_held", Value: s.Held, Help: "SRD packets held back on purpose"},
		{Name: "srd_retransmits", Value: s.Repeated, Help: "SRD packets sent again"},
		{Name: "srd_peer_timeouts", Value: s.Timeouts, Help: "SRD peers given up"},
		{Name: "srd_peer_restarts", Value: s.Restarts, Help: "SRD peers found to be opened anew"},
		{Name: "srd_naks_sent", Value: s.Refused, Help: "SRD requests refused here"},
		{Name: "srd_naks_rcvd", Value: s.NaksReceived, Help: "SRD requests refused by peers"},
		{Name: "srd_rx_unverified", Value: s.Unverified, Help: "SRD requests without this device's token"},
		{Name: "srd_rx_stale", Value: s.Stale, Help: "SRD packets with an outdated token of their sender"},
		{Name: "srd_rx_unexpected", Value: s.Unexpected, Help: "SRD answers to nothing that was asked"},
		{Name: "srd_rx_out_of_window", Value: s.OutOfWindow, Help: "SRD requests too far ahead"},
		{Name: "srd_rx_unknown_qp", Value: s.UnknownQP, Help: "SRD requests of unknown peers for no queue pair or with a wrong Q_Key"},
		{Name: "srd_rx_no_room", Value: s.NoRoom, Help: "SRD peers refused since there are 65,536"},
		{Name: "srd_reads_dropped", Value: s.ReadsDropped, Help: "SRD reads dropped since 64 of that peer wait; they are repeated"},
		{Name: "cm_rx_msgs", Value: m.Received, Help: "connection-management messages received"},
		{Name: "cm_tx_msgs", Value: m.Sent, Help: "connection-management messages sent"},
		{Name: "cm_tx_retries", Value: m.Retransmitted, Help: "connection-management messages sent again"},
		{Name: "cm_rx_duplicates", Value: m.DuplicateREQ + m.DuplicateREP + m.DuplicateDREQ, Help: "connection-management messages received before"},
		{Name: "cm_rx_malformed", Value: m.Malformed, Help: "invalid connection-management messages"},
		{Name: "cm_rx_wrong_peer", Value: m.AddressMismatch + m.WrongPeer, Help: "messages that name other addresses than their own, or a connection of another peer"},
		{Name: "cm_rx_unknown", Value: m.UnknownConnection + m.WrongTransaction + m.WrongQPN + m.WrongState, Help: "messages for no connection, or unexpected in its state"},
		{Name: "cm_rx_no_service", Value: m.NoService, Help: "requests for a port without a listener"},
		{Name: "cm_rx_unsupported", Value: m.UnsupportedRequest, Help: "requests for what the device does not have"},
		{Name: "cm_rx_stale", Value: m.StaleConnection, Help: "requests and replies for a queue pair that is connected already"},
		{Name: "cm_rx_no_room", Value: m.BacklogFull + m.HalfOpenFull + m.ConnectionsFull, Help: "requests dropped for a full backlog or device"},
		{Name: "cm_expired", Value: m.HandshakesExpired, Help: "handshakes not completed in time"},
		{Name: "cm_tx_dropped", Value: m.OutputFull, Help: "connection-management messages not sent, since too many waited"},
	}
	for i := range list {
		list[i].Port = 1 // the only one
	}
	return list
}

// totals are the sums of the counters of all shards.
type totals struct {
	transport       transport.Counters
	drops           drops
	socketDrops     uint64
	unreachable     uint64
	handoffs        uint64
	handoffsDropped uint64
	local           local.Counters
	localPeers      int
}

// totals adds up the counters of all shards.
func (d *Device) totals() (t totals) {
	for _, s := range d.mu.list {
		t.transport.Add(&s.mu.counters)
		t.drops.malformed += s.mu.drops.malformed
		t.drops.badICRC += s.mu.drops.badICRC
		t.drops.wrongPeer += s.mu.drops.wrongPeer
		t.drops.wrongSource += s.mu.drops.wrongSource
		t.drops.policed += s.mu.drops.policed
		t.drops.send += s.mu.drops.send
		for _, e := range s.endpoints {
			t.socketDrops += e.socket.Dropped()
		}
		t.unreachable += s.mu.unreachable.total
		s.handoffs.mu.Lock()
		t.handoffs += s.handoffs.total
		t.handoffsDropped += s.handoffs.dropped
		s.handoffs.mu.Unlock()
		shared := s.mu.local.Counters()
		t.local.Sent += shared.Sent
		t.local.Received += shared.Received
		t.local.Corrupt += shared.Corrupt
		t.local.Died += shared.Died
		t.localPeers += s.mu.local.Others()
	}
	return t
}
