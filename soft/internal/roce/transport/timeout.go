package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/rtt"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// The limits of a queue pair that adapts to its path. They replace the fixed
// time-out of IBTA 9.7.6.1.3 and the count of repetitions of 9.7.5.1.3.
const (
	// initialTimeout is the time-out until a round trip has been measured.
	initialTimeout = 20 * time.Millisecond
	// granularity is the least difference between the time-out and the mean round trip: G of
	// RFC 6298. Ends that poll in turns on one processor need it.
	granularity = 100 * time.Microsecond
	// minTimeout is the least time-out after which everything in flight is sent again: a busy
	// machine takes the processor from a process for some milliseconds. A shorter time-out
	// sends only a probe, which is one packet; of a read, it asks for the rest of a piece.
	minTimeout = 4 * time.Millisecond
	// maxBackoff is the limit up to which the time-out doubles, and so the longest time until
	// the requester notices that a peer is back.
	maxBackoff = 250 * time.Millisecond
	// maxAssumed bounds a round trip that is assumed rather than measured.
	maxAssumed = time.Second

	// defaultSilenceTimeout is how long the peer may be silent before the oldest request fails.
	// A process may be stopped for a second or two.
	defaultSilenceTimeout = 4 * time.Second
	// stuckTimeout limits the wait for a peer that responds but does not acknowledge the oldest
	// packet. If SilenceTimeout is longer, that applies.
	stuckTimeout = 30 * time.Second
	// unreachableTimeout limits the wait for a silent peer whose socket is reported gone.
	// Meanwhile the oldest packet is sent every unreachableInterval.
	unreachableTimeout  = time.Second
	unreachableInterval = 200 * time.Millisecond
	// minRepetitions is how often the oldest packet must be sent again before silence counts.
	minRepetitions = 5
)

// roundTrip estimates the round-trip time, as in RFC 6298. It times one packet at a time, and
// only packets of which the peer cannot have received an earlier copy (Karn's rule): new ones,
// and those that the peer has reported missing.
type roundTrip struct {
	rtt.Estimate

	// expired counts the timers that have expired since the last sample. From the second on,
	// each doubles the time-out. The time-out stays that long until the next sample, which
	// shows that it exceeds the round trip.
	expired uint
	// assumed is the least time-out until the next sample. It is set if acknowledgements have
	// come later than maxBackoff.
	assumed time.Duration

	measuring   bool
	measuredPSN uint32 // its sequence number
	measuredAt  time.Duration
	// peerDropped says that the peer has dropped what was sent before this round.
	peerDropped bool
}

// timeout returns the present time-out (RTO of RFC 6298).
func (r *roundTrip) timeout() time.Duration {
	t := r.Timeout(initialTimeout, granularity)
	backedOff := min(t<<min(max(r.expired, 1)-1, 16), maxBackoff)
	return max(t, backedOff, r.assumed)
}

func (r *roundTrip) sample(t time.Duration) {
	r.Sample(t)
	r.expired, r.assumed = 0, 0
}

// probe says which packet in flight is repeated as a probe.
type probe uint8

const (
	noProbe probe = iota
	probeOldest
	probeLast
)

// adaptive is what a queue pair with Config.Adaptive knows of its path and its peer. Time
// counts only while a timer runs, up to its deadline. If the timer is handled later than that,
// this process or machine was stopped, which says nothing about the peer.
type adaptive struct {
	roundTrip
	sentAt        time.Duration // when a packet last left
	countedUntil  time.Duration // silent and stuck are counted up to here
	probes        int           // since the timer was started
	probe         probe         // to be sent next
	probing       bool          // it is being sent
	oldestProbed  bool          // the oldest packet has been sent as a probe
	oldestMissing bool          // the peer has reported the oldest packet missing

	silent   time.Duration // since the peer last responded
	stuck    time.Duration // since unaPSN last moved
	repeated int           // repetitions of the oldest packet since the peer last responded

	unreachable         bool          // the peer's socket is reported gone
	silentAtReport      time.Duration // silent at that report
	unreachableRepeated int           // repetitions since that report
}

func (a *adaptive) count(until time.Duration) {
	t := max(until-a.countedUntil, 0)
	a.silent += t
	a.stuck += t
}

// timedOut reports whether the oldest request must fail.
func (q *QP) timedOut() bool {
	a := &q.adaptive
	switch {
	case a.stuck >= max(stuckTimeout, q.silenceLimit()):
		return true
	case !q.asAdapter && a.unreachable && a.unreachableRepeated >= minRepetitions && a.silent-a.silentAtReport >= unreachableTimeout:
		return true
	}
	return a.silent >= q.silenceLimit() && a.repeated >= minRepetitions
}

// silenceLimit returns how long the peer may be silent: of one that acts as an adapter, the
// sum of the fixed time-outs.
func (q *QP) silenceLimit() time.Duration {
	if !q.asAdapter {
		return q.silenceTimeout
	}
	return q.ackTimeout * time.Duration(4*int(q.attr.RetryCount)-1) // 1 + 2 + 4 + 4 …
}

// interval returns how long to wait for a response.
func (a *adaptive) interval() time.Duration {
	if a.unreachable {
		return max(unreachableInterval, a.Smoothed+4*a.Variation)
	}
	return a.timeout()
}

func (q *QP) armAckTimer(now time.Duration) {
	q.ackDeadline = 0
	switch {
	case q.rnrUntil != 0 || q.unaPSN == q.maxPSN:
	case q.adapts:
		q.startAdaptiveTimer(now)
	case q.ackTimeout != 0:
		q.ackDeadline = now + q.fixedTimeout()
	}
}

// fixedTimeout returns the time-out without Config.Adaptive. It doubles twice while the peer is
// silent, to the limit of IBTA 9.7.6.1.3: a busy machine may keep the peer's process waiting.
func (q *QP) fixedTimeout() time.Duration { return q.ackTimeout << q.timeouts }

// Timeout handles the timers that are due.
func (q *QP) Timeout(now time.Duration) {
	q.endWaits(now)
	if q.paceUntil != 0 && now >= q.paceUntil {
		q.paceUntil = 0
	}
	if !q.sending() {
		return
	}
	if q.rnrUntil != 0 && now >= q.rnrUntil {
		q.rnrUntil = 0
		q.armAckTimer(now)
	}
	switch {
	case q.ackDeadline == 0 || now < q.ackDeadline:
	case q.adapts:
		q.adaptiveTimeout(now)
	default:
		q.timeouts = min(q.timeouts+1, 2)
		q.retry(q.unaPSN, timeoutCost, now)
	}
}

// startAdaptiveTimer starts the timer of the oldest packet.
func (q *QP) startAdaptiveTimer(now time.Duration) {
	q.probes = 0
	q.extendAdaptiveTimer(now)
}

func (q *QP) extendAdaptiveTimer(now time.Duration) {
	q.countedUntil = now
	q.ackDeadline = now + q.interval() + q.spread()
}

// spread returns how much longer to wait than others on a shared path do, after a time-out: up
// to half of the time-out. Senders that began at the same moment would otherwise repeat at the
// same moments, and overrun the path each time.
func (q *QP) spread() time.Duration {
	t := q.timeout()
	if !q.controlled || q.unreachable || q.expired == 0 || t >= maxBackoff {
		return 0
	}
	x := (uint64(q.num)<<32 | uint64(q.unaPSN)<<8 | uint64(q.expired)) * 0x9e3779b97f4a7c15
	return time.Duration(x>>40) * (t / 2) >> 24
}

// measuresRoundTrip reports whether the queue pair measures round trips.
func (q *QP) measuresRoundTrip() bool { return q.adapts || q.controlled }

// notePacketSent notes that the packet at sendPSN leaves. It takes the given number of
// sequence numbers.
func (q *QP) notePacketSent(p *wire.Packet, packets int, now time.Duration) {
	if !q.measuresRoundTrip() {
		return
	}
	q.sentAt = now
	if q.controlled && !p.AckReq {
		return // the peer answers only after later packets, which may have to wait
	}
	if !q.measuring && (q.peerDropped || q.sendPSN == q.maxPSN) {
		q.measuring, q.measuredPSN, q.measuredAt = true, q.sendPSN, now
		if q.controlled {
			// Of a read, time the last response. It has waited in the queue of the others,
			// like the last packet of a write.
			q.measuredPSN = wire.PSNAdd(q.sendPSN, packets-1)
		}
	}
}

// noteResponse notes that the peer has responded to something in flight.
func (q *QP) noteResponse(now time.Duration) {
	if q.ackDeadline != 0 {
		if now > q.ackDeadline {
			q.measuring = false // this process or machine was stopped
		}
		q.count(min(now, q.ackDeadline))
		q.countedUntil = now
	}
	q.silent, q.repeated, q.unreachable = 0, 0, false
}

// measure takes a sample if a response to psn ends a measurement.
func (q *QP) measure(psn uint32, now time.Duration) {
	if q.measuring && wire.PSNDiff(psn, q.measuredPSN) >= 0 {
		q.measuring = false
		q.sample(now - q.measuredAt)
		if q.controlled {
			q.control.RoundTrip(now-q.measuredAt, now)
		}
	}
}

// noteOldestAcked notes that the oldest packet has been acknowledged.
func (q *QP) noteOldestAcked() {
	if q.expired > 0 && q.stuck > maxBackoff {
		q.assumed = min(2*q.stuck, maxAssumed)
	}
	q.stuck, q.oldestProbed, q.oldestMissing = 0, false, false
}

// probeAcked goes back after an acknowledgement of the oldest packet alone, which was sent as
// a probe. The peer has dropped what was sent before the probe.
func (q *QP) probeAcked(now time.Duration) {
	if q.sending() && q.sendPSN != q.unaPSN {
		q.goBack(q.unaPSN, true, now)
		q.peerDropped = true
		q.armAckTimer(now)
	}
}

// adaptiveTimeout takes the next step when no response has come in time.
func (q *QP) adaptiveTimeout(now time.Duration) {
	q.count(q.ackDeadline)
	if q.timedOut() {
		q.retryExceeded()
		return
	}
	t := q.timeout()
	switch {
	case q.unreachable:
		q.probe = probeOldest
		q.unreachableRepeated++
	case q.Measured() && q.probes == 0 && now < q.sentAt+t && q.stuck < minTimeout:
		// More packets have left since the timer was started: wait for the response to them.
		q.countedUntil = now
		q.ackDeadline = q.sentAt + t
		return
	case q.Measured() && (q.probes == 0 || t < minTimeout):
		// The last packet elicits an acknowledgement of everything, or a sequence NAK that
		// shows the gap. A peer that has sent this NAK does not repeat it, and needs the
		// oldest packet. So does a peer whose response was lost.
		q.probes++
		q.expired++
		q.steady.late()
		which := probeLast
		if q.probes%2 == 0 || q.oldestMissing || q.sq.at(q.sq.head).responds() {
			which = probeOldest
		}
		if q.probes > 1 && q.probeTooLarge(which) {
			q.extendAdaptiveTimer(now)
			return
		}
		q.probe = which
	default:
		q.expired++
		q.repeated++
		q.goBack(q.unaPSN, false, now)
		q.extendAdaptiveTimer(now)
		return
	}
	if q.probe == probeOldest {
		q.repeated++
	}
	if q.controlled && wire.PSNDiff(q.sendPSN, q.unaPSN) <= 1 {
		q.shrinkWindow(false, now) // the probe repeats all that was under way
	}
	q.noteRetransmission()
	q.extendAdaptiveTimer(now)
}

// probeTarget returns the packet that a probe repeats, and the index of its request. Something
// must be under way.
func (q *QP) probeTarget(which probe) (psn uint32, index uint64) {
	if which == probeLast {
		return q.lastSent()
	}
	return q.unaPSN, q.sq.head
}

// probeTooLarge reports whether a probe would ask for more than firstRead packets of a read.
// Such a probe is not repeated.
func (q *QP) probeTooLarge(which probe) bool {
	if q.sendPSN == q.unaPSN {
		return false
	}
	psn, index := q.probeTarget(which)
	end, asked := q.responseEnds.end(psn)
	return asked && q.sq.at(index).responds() && int(wire.PSNDiff(end, psn)) > q.firstRead
}

// PeerUnreachable takes a hint that the peer's socket is gone, such as an ICMP "port
// unreachable". The caller then calls Transmit. If something is in flight, the oldest packet
// is sent at once and then every 200 ms. Its request fails with StatusRetryExceeded if nothing
// arrives from the peer for a second. Any response ends this; until then, further hints change
// nothing. So hints, forged or true, end no connection to a live peer, unless it is silent for
// a second: because it is stopped, or about to open its socket again.
//
// PeerUnreachable does nothing without Config.Adaptive, with nothing in flight, and while the
// queue pair waits for a receive of the peer. The next packet brings the next hint.
func (q *QP) PeerUnreachable(now time.Duration) {
	if !q.adapts || q.unreachable || q.ackDeadline == 0 || !q.sending() {
		return
	}
	q.count(min(now, q.ackDeadline))
	q.unreachable, q.silentAtReport, q.unreachableRepeated = true, q.silent, 1
	q.probe = probeOldest
	q.repeated++
	q.noteRetransmission()
	q.extendAdaptiveTimer(now)
}

// sendProbe repeats one packet that is in flight.
func (q *QP) sendProbe(out Output, now time.Duration) {
	which := q.probe
	q.probe = noProbe
	if q.sendPSN == q.unaPSN {
		return // everything is about to be sent again
	}
	psn, index := q.probeTarget(which)
	q.measuring, q.peerDropped = false, false
	q.oldestProbed = which == probeOldest && !q.sq.at(index).responds()
	sendPSN, sendIdx, readsSent, unasked := q.sendPSN, q.sendIdx, q.readsSent, q.sinceAckReq
	q.sendPSN, q.sendIdx = psn, index
	q.sinceAckReq = q.ackReqInterval() // so that the probe asks for an acknowledgement
	q.probing = true
	if q.sendRequest(out, q.sq.at(index), q.mtu, now) {
		q.sendPSN, q.sendIdx, q.readsSent, q.sinceAckReq = sendPSN, sendIdx, readsSent, unasked
	}
	q.probing = false
}

// lastSent returns the packet sent before sendPSN, and the index of its request.
func (q *QP) lastSent() (psn uint32, index uint64) {
	psn, index = wire.PSNAdd(q.sendPSN, -1), q.sendIdx
	if index == q.sq.tail || wire.PSNDiff(psn, q.sq.at(index).first) < 0 {
		index--
	}
	w := q.sq.at(index)
	for w.local() { // it has been executed, but sent nothing
		index--
		w = q.sq.at(index)
	}
	if !w.responds() {
		return psn, index
	}
	// psn is that of the last response: go to the packet that asked for it.
	start := w.first
	if asked, ok := q.responseEnds.start(psn); ok && wire.PSNDiff(asked, start) > 0 {
		start = asked
	}
	if wire.PSNDiff(start, q.unaPSN) < 0 {
		start = q.unaPSN
	}
	return start, index
}
