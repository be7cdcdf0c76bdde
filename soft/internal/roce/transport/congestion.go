package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// congestionControl is what a queue pair does about congestion (annex A17.9): as the sender
// of requests, which are acknowledged; as that of responses to reads, or on an unreliable
// connection, which are not; and as the receiver of packets that the network has marked.
type congestionControl struct {
	controlled bool // of SetCongestionControl
	control    congestion.Window
	rate       congestion.Rate

	// spacing is the time from one request packet to the next. Zero: they may leave
	// together.
	spacing  time.Duration
	notUntil time.Duration // when the next request may leave
	// requestsAt and responsesAt are when requests and responses go on that wait for no
	// more than time. Zero: they do not.
	requestsAt, responsesAt time.Duration

	notify     bool // a notification is to be sent
	notifiedAt time.Duration
	everSent   bool // a notification
}

// notificationInterval is the least time between two notifications to a peer, as adapters
// have it by default.
const notificationInterval = 50 * time.Microsecond

// SetCongestionControl says whether the path from now on is one that others share, on which
// packets are marked, wait and are lost for there being too many.
func (q *QP) SetCongestionControl(on bool) {
	q.controlled = on
	q.spacing, q.requestsAt, q.responsesAt, q.notify = 0, 0, 0, false
	q.rate = congestion.Rate{}
	q.control.Start(q.congestion, q.ceiling)
}

// applyWindow sets the requester's bounds to those of the window.
func (q *QP) applyWindow(now time.Duration) {
	q.congestion, q.spacing = q.control.Packets(now), q.control.Interval(now)
}

// widen has the window grow for packets that have arrived, of those that were under way.
func (q *QP) widen(arrived, underWay int, now time.Duration) {
	if !q.controlled {
		q.congestion = min(q.congestion+max(arrived/4, 1), q.ceiling)
		q.steady.arrived(arrived)
		return
	}
	q.control.Acknowledged(arrived, underWay, now)
	q.applyWindow(now)
}

// narrow has the window shrink for a loss, which packets that left later have shown or a
// time-out.
func (q *QP) narrow(shown bool, now time.Duration) {
	switch {
	case !q.controlled:
		q.congestion = max(q.congestion/2, minWindow)
		q.steady.lost()
		return
	case shown:
		q.control.Lost(now)
	default:
		q.control.TimedOut(now)
	}
	q.applyWindow(now)
}

// spaced reports whether requests have to wait, so that they leave at intervals.
func (q *QP) spaced(now time.Duration) bool {
	q.requestsAt = 0
	if q.spacing == 0 || now >= q.notUntil {
		return false
	}
	q.requestsAt = q.notUntil
	if q.sendPSN == q.unaPSN {
		q.ackDeadline = 0 // there is nothing that the peer could answer
	}
	return true
}

// space notes that packets leave, or are asked for. What leaves late may be made up for
// by one interval.
func (q *QP) space(packets int, now time.Duration) {
	if q.spacing > 0 {
		q.notUntil = max(q.notUntil, now-q.spacing) + time.Duration(packets)*q.spacing
	}
}

// resume lets what waits for time go on.
func (q *QP) resume(now time.Duration) {
	if q.requestsAt != 0 && now >= q.requestsAt {
		q.requestsAt = 0
	}
	if q.responsesAt != 0 && now >= q.responsesAt {
		q.responsesAt = 0
	}
}

// Marked notes that a packet has arrived from the peer of a connection which the network has
// marked, with "congestion experienced" (RFC 3168): the peer is told.
func (q *QP) Marked(p *wire.Packet, now time.Duration) {
	if !q.controlled || !p.Opcode.HasPayload() || !q.receiving() {
		return
	}
	q.counters.MarkedPackets++
	if !q.everSent || now >= q.notifiedAt+notificationInterval {
		q.notify = true
	}
	if p.Opcode.IsReadResponse() && q.awaited(p.PSN) {
		// How much the peer sends is this end's to ask for.
		q.control.Marked(now)
		q.applyWindow(now)
	}
}

// sendNotification sends a congestion notification packet.
func (q *QP) sendNotification(out Output, now time.Duration) {
	q.notify, q.everSent, q.notifiedAt = false, true, now
	p := &q.packet
	*p = wire.Packet{Opcode: wire.CNP, PKey: defaultPKey, DestQP: q.attr.DestQPN, BECN: true, MigReq: true}
	q.counters.NotificationsSent++
	out.Send(p, nil, 0)
}

// notified takes the peer's word that what this end sends meets congestion. Anybody on the
// way can say so as well, in a bit that no checksum covers: see congestion.Window and
// congestion.Rate for what may leave all the same.
func (q *QP) notified(now time.Duration) {
	obeyed := false
	if q.controlled && q.receiving() {
		if q.kind == verbs.RC && q.sending() && q.unaPSN != q.maxPSN {
			obeyed = q.control.Marked(now)
			q.applyWindow(now)
		}
		obeyed = q.rate.Marked(now) || obeyed
	}
	if obeyed {
		q.counters.NotificationsObeyed++
	} else {
		q.counters.NotificationsIgnored++
	}
}
