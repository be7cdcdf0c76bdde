package roce

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
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
	c := &t.transport
	s := d.main.srd.Counters()
	var m cm.Counters
	if d.mu.services != nil {
		m = d.mu.services.Counters()
	}
	return []verbs.Counter{
		{Name: "sent_pkts", Value: c.SentPackets},
		{Name: "rcvd_pkts", Value: c.ReceivedPackets},
		{Name: "duplicate_request", Value: c.DuplicateRequests + s.Duplicates},
		{Name: "out_of_seq_request", Value: c.OutOfSequence},
		{Name: "rcvd_rnr_err", Value: c.RNRNaksReceived + s.NotReadyNaks},
		{Name: "send_rnr_err", Value: c.RNRNaksSent + s.NotReady},
		{Name: "rcvd_seq_err", Value: c.SequenceNaks},
		{Name: "ack_deferred", Value: c.AcksDeferred},
		{Name: "retry_exceeded_err", Value: c.RetryExceeded},
		{Name: "retry_rnr_exceeded_err", Value: c.RNRRetryExceeded + s.RNRExceeded},
		{Name: "completer_retry_err", Value: c.CompleterRetries},
		{Name: "send_err", Value: t.drops.send},
		{Name: "rdma_sends", Value: c.Sends + s.Sends},
		{Name: "rdma_recvs", Value: c.Receives + s.Receives},
		{Name: "resp_remote_access_errors", Value: c.RemoteAccessErrors + s.Access},
		{Name: "resp_invalid_request_errors", Value: c.RemoteInvalidErrors},
		{Name: "rx_icrc_errors", Value: t.drops.badICRC},
		{Name: "rx_malformed", Value: t.drops.malformed},
		{Name: "rx_broken_messages", Value: c.BrokenMessages},
		{Name: "rx_datagrams_dropped", Value: c.DatagramsDropped},
		{Name: "rx_qkey_violations", Value: c.QKeyViolations + s.QKey},
		{Name: "rx_wrong_peer", Value: t.drops.wrongPeer},
		{Name: "rx_wrong_source", Value: t.drops.wrongSource + s.WrongSource},
		{Name: "rx_wrong_service", Value: c.WrongService},
		{Name: "rx_wrong_state", Value: c.WrongState},
		{Name: "rx_unexpected_responses", Value: c.UnexpectedResponses},
		{Name: "rx_duplicates_refused", Value: c.DuplicatesRefused},
		{Name: "rx_requests_dropped", Value: c.RequestsDropped},
		{Name: "rx_accesses_limited", Value: c.AccessesLimited + s.AccessesLimited},
		{Name: "reads_abandoned", Value: c.ReadsAbandoned},
		{Name: "np_ecn_marked_roce_packets", Value: c.MarkedPackets},
		{Name: "np_cnp_sent", Value: c.NotificationsSent},
		{Name: "rp_cnp_handled", Value: c.NotificationsHandled},
		{Name: "rp_cnp_ignored", Value: c.NotificationsIgnored},
		{Name: "multicast_xmit_packets", Value: d.main.multicast.sent},
		{Name: "multicast_rcv_packets", Value: d.main.multicast.received},
		{Name: "rx_socket_drops", Value: t.socketDrops},
		{Name: "local_peers", Value: uint64(t.localPeers)},
		{Name: "local_sent_pkts", Value: t.local.Sent},
		{Name: "local_rcvd_pkts", Value: t.local.Received},
		{Name: "local_protocol_errors", Value: t.local.Corrupt},
		{Name: "local_peers_died", Value: t.local.Died},
		{Name: "rx_icmp_unreachable", Value: t.unreachable},
		{Name: "cm_rx_rate_limited", Value: t.drops.policed},
		{Name: "rx_passed_on", Value: t.handoffs},
		{Name: "rx_passed_on_dropped", Value: t.handoffsDropped},
		{Name: "srd_peers", Value: s.Contexts},
		{Name: "srd_held", Value: s.Held},
		{Name: "srd_retransmits", Value: s.Repeated},
		{Name: "srd_peer_timeouts", Value: s.Timeouts},
		{Name: "srd_peer_restarts", Value: s.Restarts},
		{Name: "srd_naks_sent", Value: s.Refused},
		{Name: "srd_naks_rcvd", Value: s.NaksReceived},
		{Name: "srd_rx_unverified", Value: s.Unverified},
		{Name: "srd_rx_stale", Value: s.Stale},
		{Name: "srd_rx_unexpected", Value: s.Unexpected},
		{Name: "srd_rx_out_of_window", Value: s.OutOfWindow},
		{Name: "srd_rx_unknown_qp", Value: s.UnknownQP},
		{Name: "srd_rx_no_room", Value: s.NoRoom},
		{Name: "srd_reads_dropped", Value: s.ReadsDropped},
		{Name: "cm_rx_msgs", Value: m.Received},
		{Name: "cm_tx_msgs", Value: m.Sent},
		{Name: "cm_tx_retries", Value: m.Retransmitted},
		{Name: "cm_rx_duplicates", Value: m.DuplicateREQ + m.DuplicateREP + m.DuplicateDREQ},
		{Name: "cm_rx_malformed", Value: m.Malformed},
		{Name: "cm_rx_wrong_peer", Value: m.AddressMismatch + m.WrongPeer},
		{Name: "cm_rx_unknown", Value: m.UnknownConnection + m.WrongTransaction + m.WrongQPN + m.WrongState},
		{Name: "cm_rx_no_service", Value: m.NoService},
		{Name: "cm_rx_unsupported", Value: m.UnsupportedRequest},
		{Name: "cm_rx_stale", Value: m.StaleConnection},
		{Name: "cm_rx_no_room", Value: m.BacklogFull + m.HalfOpenFull + m.ConnectionsFull},
		{Name: "cm_expired", Value: m.HandshakesExpired},
		{Name: "cm_tx_dropped", Value: m.OutputFull},
	}, nil
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
