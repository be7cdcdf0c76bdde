package roce

import (
	"github.com/verbena-rdma/verbena/internal/roce/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Counters implements verbs.Device. The names up to rdma_recvs are those of the
// kernel's soft-RoCE driver, and cm_rx_msgs, cm_tx_msgs, cm_tx_retries and
// cm_rx_duplicates those of its connection manager; the others count what these do not.
func (d *Device) Counters() ([]verbs.Counter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &d.counters
	var m cm.Counters
	if d.services != nil {
		m = d.services.manager.Counters()
	}
	return []verbs.Counter{
		{Name: "sent_pkts", Value: c.SentPackets},
		{Name: "rcvd_pkts", Value: c.ReceivedPackets},
		{Name: "duplicate_request", Value: c.DuplicateRequests},
		{Name: "out_of_seq_request", Value: c.OutOfSequence},
		{Name: "rcvd_rnr_err", Value: c.RNRNaksReceived},
		{Name: "send_rnr_err", Value: c.RNRNaksSent},
		{Name: "rcvd_seq_err", Value: c.SequenceNaks},
		{Name: "ack_deferred", Value: c.AcksDeferred},
		{Name: "retry_exceeded_err", Value: c.RetryExceeded},
		{Name: "retry_rnr_exceeded_err", Value: c.RNRRetryExceeded},
		{Name: "completer_retry_err", Value: c.CompleterRetries},
		{Name: "send_err", Value: d.drops.send},
		{Name: "rdma_sends", Value: c.Sends},
		{Name: "rdma_recvs", Value: c.Receives},
		{Name: "resp_remote_access_errors", Value: c.RemoteAccessErrors},
		{Name: "resp_invalid_request_errors", Value: c.RemoteInvalidErrors},
		{Name: "rx_icrc_errors", Value: d.drops.badICRC},
		{Name: "rx_malformed", Value: d.drops.malformed},
		{Name: "rx_broken_messages", Value: c.BrokenMessages},
		{Name: "rx_datagrams_dropped", Value: c.DatagramsDropped},
		{Name: "rx_qkey_violations", Value: c.QKeyViolations},
		{Name: "rx_wrong_peer", Value: d.drops.wrongPeer},
		{Name: "rx_icmp_unreachable", Value: d.unreachable.reports},
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
