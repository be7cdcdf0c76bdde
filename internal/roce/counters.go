package roce

import "github.com/verbena-rdma/verbena/verbs"

// Counters implements verbs.Device. The names up to rdma_recvs are those of the
// kernel's soft-RoCE driver; the others count what that driver does not.
func (d *Device) Counters() ([]verbs.Counter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &d.counters
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
	}, nil
}
