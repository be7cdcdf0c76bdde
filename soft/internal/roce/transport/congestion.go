package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// congestionControl is how a queue pair reacts to congestion (annex A17.9). It may be the
// sender of requests, which are acknowledged; the sender of responses to reads, or on an
// unreliable connection, which are not acknowledged; and the receiver of packets that the
// network has marked.
type congestionControl struct {
	controlled bool // set by SetCongestionControl
	control    congestion.Window
	rate       congestion.Rate

	// spacing is the time between two request packets. Zero: they may leave together.
	spacing       time.Duration
	nextRequestAt time.Duration // when the next request may leave
	// requestsWaitUntil and responsesWaitUntil are when requests and responses may continue
	// that wait only for time. Zero: they do not wait.
	requestsWaitUntil, responsesWaitUntil time.Duration

	notify     bool // a notification must be sent
	notifiedAt time.Duration
	everSent   bool // a notification was sent
}

// notificationInterval is the least time between two notifications to a peer. It is the
// default of adapters.
const notificationInterval = 50 * time.Microsecond

// SetCongestionControl says whether the path from now on is shared with others, so that
// packets are marked, delayed and lost when there are too many.
func (q *QP) SetCongestionControl(on bool) {
	q.controlled = on
	q.spacing, q.requestsWaitUntil, q.responsesWaitUntil, q.notify = 0, 0, 0, false
	q.rate = congestion.Rate{}
	q.control.Start(q.congestionWindow, q.maxCongestionWindow)
}

// applyWindow sets the requester's limits to those of the window.
func (q *QP) applyWindow(now time.Duration) {
	q.congestionWindow, q.spacing = q.control.Packets(now), q.control.Interval(now)
}

// growWindow grows the window for packets that have arrived, of those that were under way.
func (q *QP) growWindow(arrived, underWay int, now time.Duration) {
	if !q.controlled {
		q.congestionWindow = min(q.congestionWindow+max(arrived/4, 1), q.maxCongestionWindow)
		q.steady.arrived(arrived)
		return
	}
	q.control.Acknowledged(arrived, underWay, now)
	q.applyWindow(now)
}

// shrinkWindow shrinks the window for a loss. shown says that later packets have shown the loss;
// otherwise it was a time-out.
func (q *QP) shrinkWindow(detected bool, now time.Duration) {
	switch {
	case !q.controlled:
		q.congestionWindow = max(q.congestionWindow/2, minWindow)
		q.steady.lost()
		return
	case detected:
		q.control.Lost(now)
	default:
		q.control.TimedOut(now)
	}
	q.applyWindow(now)
}

// mustWait reports whether the next request must wait, because requests leave at intervals.
func (q *QP) mustWait(now time.Duration) bool {
	q.requestsWaitUntil = 0
	if q.spacing == 0 || now >= q.nextRequestAt {
		return false
	}
	q.requestsWaitUntil = q.nextRequestAt
	if q.sendPSN == q.unaPSN {
		q.ackDeadline = 0 // nothing is under way that the peer could answer
	}
	return true
}

// scheduleNext notes that packets leave, or are asked for. A late packet shortens at most one
// interval.
func (q *QP) scheduleNext(packets int, now time.Duration) {
	if q.spacing > 0 {
		q.nextRequestAt = max(q.nextRequestAt, now-q.spacing) + time.Duration(packets)*q.spacing
	}
}

// endWaits ends the waits whose time has come.
func (q *QP) endWaits(now time.Duration) {
	if q.requestsWaitUntil != 0 && now >= q.requestsWaitUntil {
		q.requestsWaitUntil = 0
	}
	if q.responsesWaitUntil != 0 && now >= q.responsesWaitUntil {
		q.responsesWaitUntil = 0
	}
}

// Marked notes that a packet from the peer of a connection was marked by the network, with
// "congestion experienced" (RFC 3168). The peer gets a notification.
func (q *QP) Marked(p *wire.Packet, now time.Duration) {
	if !q.controlled || !p.Opcode.HasPayload() || !q.receiving() {
		return
	}
	q.counters.MarkedPackets++
	if !q.everSent || now >= q.notifiedAt+notificationInterval {
		q.notify = true
	}
	if p.Opcode.IsReadResponse() && q.expectsResponse(p.PSN) {
		// This end decides how much the peer sends: by its read requests.
		q.control.Marked(now)
		q.applyWindow(now)
	}
}

// sendNotification sends a congestion notification packet.
func (q *QP) sendNotification(out Output, now time.Duration) {
	q.notify, q.everSent, q.notifiedAt = false, true, now
	p := &q.packet
	*p = wire.Packet{Opcode: wire.CNP, PKey: wire.DefaultPKey, DestQP: q.attr.DestQPN, BECN: true, MigReq: true}
	q.counters.NotificationsSent++
	out.Send(p, nil, 0)
}

// receiveNotification handles the peer's notification that the packets of this end meet congestion.
// Anybody on the path can forge it, in a bit that no checksum covers. congestion.Window and
// congestion.Rate define what may leave all the same.
func (q *QP) receiveNotification(now time.Duration) {
	handled := false
	if q.controlled && q.receiving() {
		if q.reliable && q.sending() && q.unaPSN != q.maxPSN {
			handled = q.control.Marked(now)
			q.applyWindow(now)
		}
		handled = q.rate.Marked(now) || handled
	}
	if handled {
		q.counters.NotificationsHandled++
	} else {
		q.counters.NotificationsIgnored++
	}
}
