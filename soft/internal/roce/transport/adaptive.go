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
	// granularity is the least that the time-out exceeds the mean round trip by: G
	// of RFC 6298. Ends that poll in turns on one processor need some.
	granularity = 100 * time.Microsecond
	// minTimeout is the least time-out after which everything in flight is sent
	// again: a busy machine takes the processor from a process for some
	// milliseconds. Shorter ones only send a probe, which is one packet; of a read it asks for
	// the rest of a piece.
	minTimeout = 4 * time.Millisecond
	// maxBackoff is what the time-out doubles up to, and so how late it is noticed
	// that a peer is back.
	maxBackoff = 250 * time.Millisecond
	// maxAssumed bounds a round trip that is assumed, not measured.
	maxAssumed = time.Second

	// patience is how long the peer may be silent before the oldest request fails.
	// A process may be stopped for a second or two.
	patience = 4 * time.Second
	// stuckPatience is the same for a peer that responds, but does not
	// acknowledge the oldest packet.
	stuckPatience = 30 * time.Second
	// hintPatience is the same for a silent peer whose socket is reported gone.
	// Meanwhile the oldest packet is sent every hintInterval.
	hintPatience = time.Second
	hintInterval = 200 * time.Millisecond
	// minRepetitions is how often the oldest packet is sent again at least before
	// silence counts.
	minRepetitions = 5
)

// roundTrip estimates the time to the peer and back, as in RFC 6298. It times one
// packet at a time, and only packets of which the peer cannot have taken an earlier
// copy (Karn's rule): new ones, and those that the peer has reported missing.
type roundTrip struct {
	rtt.Estimate

	// expired counts the timers that have expired since the last sample. From the
	// second on each doubles the time-out, which stays so until there is a sample
	// again: only then is it known to be longer than the round trip.
	expired uint
	// assumed is the least time-out until then, where acknowledgements have come
	// later than maxBackoff.
	assumed time.Duration

	timing  bool
	timed   uint32 // its sequence number
	timedAt time.Duration
	// dropped says that the peer has dropped what was sent before this round.
	dropped bool
}

// timeout is the present time-out (RTO of RFC 6298).
func (r *roundTrip) timeout() time.Duration {
	t := r.Timeout(initialTimeout, granularity)
	backedOff := min(t<<min(max(r.expired, 1)-1, 16), maxBackoff)
	return max(t, backedOff, r.assumed)
}

func (r *roundTrip) sample(t time.Duration) {
	r.Sample(t)
	r.expired, r.assumed = 0, 0
}

// probe says which packet in flight is to be sent once more by itself.
type probe uint8

const (
	noProbe probe = iota
	probeOldest
	probeLast
)

// adaptive is what a queue pair with Config.Adaptive knows of its path and its
// peer. Time is counted while a timer runs, and not beyond its end: when the timer
// is looked at late, this process or machine stood still, which says nothing of the
// peer.
type adaptive struct {
	roundTrip
	sentAt  time.Duration // when a packet last left
	counted time.Duration // until when silent and stuck are counted
	probes  int           // since the timer was started
	probe   probe         // to be sent next
	probing bool          // it is being sent
	probed  bool          // the oldest packet has been sent as a probe
	missing bool          // the peer has reported the oldest packet missing

	silent   time.Duration // since the peer last responded
	stuck    time.Duration // since the oldest packet was last acknowledged
	repeated int           // times the oldest packet was sent again since the peer last responded

	unreachable  bool          // the peer's socket is reported gone
	silentBefore time.Duration // silent, at that report
	hintRepeated int           // repeated, since that report
}

func (a *adaptive) count(until time.Duration) {
	t := max(until-a.counted, 0)
	a.silent += t
	a.stuck += t
}

// outOfPatience reports whether the oldest request is to fail.
func (a *adaptive) outOfPatience() bool {
	switch {
	case a.stuck >= stuckPatience:
		return true
	case a.unreachable && a.hintRepeated >= minRepetitions && a.silent-a.silentBefore >= hintPatience:
		return true
	}
	return a.silent >= patience && a.repeated >= minRepetitions
}

// interval is how long to wait for a response.
func (a *adaptive) interval() time.Duration {
	if a.unreachable {
		return max(hintInterval, a.Smoothed+4*a.Variation)
	}
	return a.timeout()
}

// startAdaptiveTimer starts the timer of the oldest packet.
func (q *QP) startAdaptiveTimer(now time.Duration) {
	q.probes = 0
	q.extendAdaptiveTimer(now)
}

func (q *QP) extendAdaptiveTimer(now time.Duration) {
	q.counted = now
	q.ackDeadline = now + q.interval()
}

// measures reports whether the queue pair measures round trips.
func (q *QP) measures() bool { return q.adapts || q.controlled }

// sent notes that the packet at sendPSN leaves, which takes so many sequence numbers.
func (q *QP) sent(p *wire.Packet, packets int, now time.Duration) {
	if !q.measures() {
		return
	}
	q.sentAt = now
	if q.controlled && !p.AckReq {
		return // the answer waits for the packets that follow, which leave when they may
	}
	if !q.timing && (q.dropped || q.sendPSN == q.maxPSN) {
		q.timing, q.timed, q.timedAt = true, q.sendPSN, now
		if q.controlled {
			// Of a read, the last response has met the queue that the others have made, as
			// the last packet of a write has.
			q.timed = wire.PSNAdd(q.sendPSN, packets-1)
		}
	}
}

// responded notes that the peer has responded to something in flight.
func (q *QP) responded(now time.Duration) {
	if q.ackDeadline != 0 {
		if now > q.ackDeadline {
			q.timing = false // this end stood still
		}
		q.count(min(now, q.ackDeadline))
		q.counted = now
	}
	q.silent, q.repeated, q.unreachable = 0, 0, false
}

// measure takes the sample that a response to psn gives.
func (q *QP) measure(psn uint32, now time.Duration) {
	if q.timing && wire.PSNDiff(psn, q.timed) >= 0 {
		q.timing = false
		q.sample(now - q.timedAt)
		if q.controlled {
			q.control.RoundTrip(now-q.timedAt, now)
		}
	}
}

// moved notes that the oldest packet has been acknowledged.
func (q *QP) moved() {
	if q.expired > 0 && q.stuck > maxBackoff {
		q.assumed = min(2*q.stuck, maxAssumed)
	}
	q.stuck, q.probed, q.missing = 0, false, false
}

// probeTaken goes back after an acknowledgement of the oldest packet alone, which was
// sent as a probe: what was sent before the probe, the peer has dropped.
func (q *QP) probeTaken(now time.Duration) {
	if q.sending() && q.sendPSN != q.unaPSN {
		q.goBack(q.unaPSN, true, now)
		q.dropped = true
		q.armAckTimer(now)
	}
}

// adaptiveTimeout takes the next step when no response has come in time.
func (q *QP) adaptiveTimeout(now time.Duration) {
	q.count(q.ackDeadline)
	if q.outOfPatience() {
		q.retryExceeded()
		return
	}
	t := q.timeout()
	switch {
	case q.unreachable:
		q.probe = probeOldest
		q.hintRepeated++
	case q.Measured() && q.probes == 0 && now < q.sentAt+t && q.stuck < minTimeout:
		// More has left since the timer was started: wait for the response to that.
		q.counted = now
		q.ackDeadline = q.sentAt + t
		return
	case q.Measured() && (q.probes == 0 || t < minTimeout):
		// The last packet elicits an acknowledgement of everything, or a sequence
		// NAK that shows the gap. A peer that has sent that NAK already, and will
		// not again, needs the oldest; so does one whose response was lost.
		q.probes++
		q.expired++
		q.steady.late()
		which := probeLast
		if q.probes%2 == 0 || q.missing || q.sq.at(q.sq.head).responds() {
			which = probeOldest
		}
		if q.probes > 1 && q.asksForMuch(which) {
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
		q.narrow(false, now) // the probe repeats all that was under way
	}
	q.counters.CompleterRetries++
	q.extendAdaptiveTimer(now)
}

// probedBy is the packet that a probe repeats, and its request. Something is under way.
func (q *QP) probedBy(which probe) (psn uint32, index uint64) {
	if which == probeLast {
		return q.lastSent()
	}
	return q.unaPSN, q.sq.head
}

// asksForMuch reports whether a probe would ask for so much of a read that one has to be enough.
func (q *QP) asksForMuch(which probe) bool {
	if q.sendPSN == q.unaPSN {
		return false
	}
	psn, index := q.probedBy(which)
	end, asked := q.asked.end(psn)
	return asked && q.sq.at(index).responds() && int(wire.PSNDiff(end, psn)) > q.firstRead
}

// PeerUnreachable takes a hint that the peer's socket is gone, such as an ICMP
// "port unreachable", and is followed by a call of Transmit. If something is in
// flight, the oldest packet is sent at once and every 200 ms, and its request fails
// with StatusRetryExceeded when nothing comes from the peer for a second. Any
// response ends this, and further hints change nothing until then. So a peer that
// lives loses no connection by hints, forged or true, unless it is silent for that long:
// it stands still, or is about to open its socket anew.
//
// Without Config.Adaptive, with nothing in flight, and while the peer has the queue
// pair wait for a receive, it does nothing: what is sent next brings the next hint.
func (q *QP) PeerUnreachable(now time.Duration) {
	if !q.adapts || q.unreachable || q.ackDeadline == 0 || !q.sending() {
		return
	}
	q.count(min(now, q.ackDeadline))
	q.unreachable, q.silentBefore, q.hintRepeated = true, q.silent, 1
	q.probe = probeOldest
	q.repeated++
	q.counters.CompleterRetries++
	q.extendAdaptiveTimer(now)
}

// sendProbe sends one packet once more that is in flight already.
func (q *QP) sendProbe(out Output, now time.Duration) {
	which := q.probe
	q.probe = noProbe
	if q.sendPSN == q.unaPSN {
		return // everything is about to be sent again
	}
	psn, index := q.probedBy(which)
	q.timing, q.dropped = false, false
	q.probed = which == probeOldest && !q.sq.at(index).responds()
	sendPSN, sendIdx, readsSent, unasked := q.sendPSN, q.sendIdx, q.readsSent, q.unasked
	q.sendPSN, q.sendIdx = psn, index
	q.unasked = q.askInterval() // so that it asks for an acknowledgement
	q.probing = true
	if q.sendRequest(out, q.sq.at(index), q.mtu, now) {
		q.sendPSN, q.sendIdx, q.readsSent, q.unasked = sendPSN, sendIdx, readsSent, unasked
	}
	q.probing = false
}

// lastSent is the packet sent before sendPSN, and its request.
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
	// psn is that of the last response: go to where it was asked for.
	start := w.first
	if asked, ok := q.asked.start(psn); ok && wire.PSNDiff(asked, start) > 0 {
		start = asked
	}
	if wire.PSNDiff(start, q.unaPSN) < 0 {
		start = q.unaPSN
	}
	return start, index
}
