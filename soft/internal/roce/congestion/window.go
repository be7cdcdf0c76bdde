package congestion

import (
	"math"
	"time"
)

// Window limits how many packets of a reliable connection may be under way. A window of less
// than one packet spaces the packets in time.
//
// A window is open until the path is known to be congested. An open window grows by a quarter
// in each round trip and is halved by a loss, whatever the round trip is: on hosts that share
// their processors, a long round trip says more about their schedulers than about the path.
//
// The path counts as congested for a while after a packet was marked, or was lost while the
// round trip was longer than on the empty path. The window then holds the round trip near a
// target. The smaller the window, the higher its target, so that the windows that share a
// queue become equal.
//
// The window is in competitive mode for a while if shrinking it had no effect: with at most
// twice the least window, the round trip stayed above the target without a mark or loss.
// Either other senders that do not yield keep the queue up, or the queue is for a processor; a
// window that yields would be starved. In this mode the window is open, and a single loss does
// not count as congestion. Marks, and losses in a row, end the mode.
type Window struct {
	packets float64
	maximum float64

	base     time.Duration // the shortest round trip so far: that of the empty path
	smoothed time.Duration
	last     time.Duration
	measured bool
	lowest   time.Duration // the shortest round trip of the current trend
	counted  int           // round trips in the current trend
	onTarget int           // round trips in a row that were no longer than the target
	// ineffective is the number of trends in a row in which a smaller window did not shorten
	// the round trip.
	ineffective int
	limit       float64 // packets at the last loss; zero: not known
	underWay    int     // packets, at the last acknowledgement
	probe       rttProbe

	competitiveFor   time.Duration // length of the last competitive mode; zero: smaller windows have had an effect since
	competitiveUntil time.Duration

	losses         int           // in a row
	congestedAt    time.Duration // when a mark or loss last showed congestion
	congestedUntil time.Duration // the path counts as congested until then
	cutAt          time.Duration // when the window was last cut
	everCut        bool
	fraction       float64 // estimated fraction of packets that are marked: the α of DCQCN
	notified       bool
	notifiedAt     time.Duration // when fraction was last changed
}

const (
	// openGrowth is the fraction by which an open window grows in a round trip. The window of
	// a congested path grows by it too after onTargetTrips round trips within the target, but not
	// between nearLimit and beyondLimit.
	openGrowth    = 1.0 / 4
	onTargetTrips = 5
	// nearLimit and beyondLimit are multiples of the window at the last loss. Between them,
	// the window of a congested path grows only by growth.
	nearLimit, beyondLimit = 0.6, 1.25
	// growth is the number of packets by which the window of a congested path grows in a round
	// trip.
	growth = 1.0 / 4
	// markedTrips is for how many round trips after a mark the queue counts as one that marks.
	markedTrips = 64
	// leastOpen is the least window of a path without congestion.
	leastOpen = 4

	// The target is the round trip of the empty path, plus targetQueue, plus targetShare
	// divided by the square root of the window in packets. A window below leastShare counts as
	// leastShare.
	targetQueue = 200 * time.Microsecond
	targetShare = 200 * time.Microsecond
	leastShare  = 1.0 / 4
	// queueThreshold is how far a round trip must exceed that of the empty path to show a
	// queue. On a path with a shorter round trip, twice that round trip is enough.
	queueThreshold = 50 * time.Microsecond
	// congestionLosses is how many losses in a row show congestion even if the round trip is short.
	// Losses are in a row if they are at most three round trips apart.
	congestionLosses = 4
	// swiftBeta is the β of Swift: the part of the excess that the window is cut by.
	swiftBeta = 0.8
	// A round trip longer than spike × target is ignored if the one before it was within the
	// target.
	spike = 2

	// congestedTime is how long a path counts as congested after a mark or loss. If the round trip
	// shows a queue that never empties, it is longCongestedTime instead.
	congestedTime     = 2 * time.Second
	longCongestedTime = 30 * time.Second
	trend             = 8 // round trips that are judged together
	// ineffectiveTrends is how many ineffective trends start competitive mode. The mode lasts
	// for leastCompetitive at first, and twice as long each time, up to longCongestedTime.
	ineffectiveTrends = 4
	leastCompetitive  = 2 * time.Second

	// dcqcnWeight is the g of DCQCN.
	dcqcnWeight = 1.0 / 16
	// maxInterval is the longest time between two packets, unless the round trip is longer. It
	// guarantees a minimum rate whatever the signals are, forged ones included.
	maxInterval = 5 * time.Millisecond
	// minInterval is the shortest interval that is worth a timer.
	minInterval = 50 * time.Microsecond
	// unmeasured is the round trip that is assumed until one has been measured.
	unmeasured = time.Millisecond
)

// Start resets the window to the given number of packets. It can grow to most.
func (w *Window) Start(packets, most int) {
	*w = Window{packets: float64(packets), maximum: float64(most)}
}

// Congested reports whether the path is known to be congested.
func (w *Window) Congested(now time.Duration) bool { return now < w.congestedUntil }

// Packets returns how many packets may be under way, at least one.
func (w *Window) Packets(now time.Duration) int {
	n := w.packets
	if w.Interval(now) > 0 {
		n = math.Ceil(n)
	}
	return max(int(n), 1)
}

// Interval returns the time between two packets; zero means that they may leave together.
func (w *Window) Interval(now time.Duration) time.Duration {
	if !w.Congested(now) {
		return 0
	}
	i := time.Duration(float64(w.roundTrip()) / w.packets)
	if i < minInterval {
		return 0
	}
	return min(i, max(maxInterval, w.roundTrip()))
}

func (w *Window) roundTrip() time.Duration {
	if !w.measured {
		return unmeasured
	}
	return w.smoothed
}

// queued reports whether a round trip of t shows a queue.
func (w *Window) queued(t time.Duration) bool { return t > w.base+min(queueThreshold, w.base) }

// target returns the round trip at which the window of a congested path is held.
func (w *Window) target() time.Duration {
	return w.base + targetQueue + time.Duration(float64(targetShare)/math.Sqrt(max(w.packets, leastShare)))
}

// RoundTrip takes a measured round trip. The measured packet must be one that the peer
// acknowledges at once.
func (w *Window) RoundTrip(t, now time.Duration) {
	t = max(t, 1)
	if !w.measured {
		w.measured, w.base, w.smoothed, w.last = true, t, t, t
	}
	w.base = min(w.base, t)
	w.smoothed += (t - w.smoothed) / 8
	before := w.last
	w.last = t
	if w.counted == 0 || t < w.lowest {
		w.lowest = t
	}
	switch w.probe.left {
	case 0:
	case 1:
		w.endProbe()
	default:
		w.probe.left--
		return
	}
	if w.counted++; w.counted == trend {
		w.counted = 0
		if w.Congested(now) && w.queued(w.lowest) && now < w.congestedAt+longCongestedTime {
			w.congestedUntil = max(w.congestedUntil, now+congestedTime)
		}
		w.maybeCompete(now)
		w.maybeProbe(now)
	}
	if !w.Congested(now) || w.probe.left > 0 {
		return
	}
	target := w.target()
	if before <= target && t > spike*target {
		return // more likely the scheduler than the path; the next round trip decides
	}
	over := t - target
	if over <= 0 {
		if w.onTarget++; w.onTarget == onTargetTrips {
			w.competitiveFor = 0
		}
		return
	}
	w.onTarget = 0
	if w.packets > w.least() && w.mayCut(now) {
		w.cut(1-min(swiftBeta*float64(over)/float64(t), 0.5), w.least(), now)
	}
}

// maybeCompete starts competitive mode if the last trends show that a smaller window
// has no effect.
func (w *Window) maybeCompete(now time.Duration) {
	if !w.Congested(now) || w.packets > 2*w.least() || w.lowest <= w.target() {
		w.ineffective = 0
		return
	}
	if w.ineffective++; w.ineffective < ineffectiveTrends {
		return
	}
	w.ineffective, w.congestedUntil = 0, now
	w.competitiveFor = min(max(2*w.competitiveFor, leastCompetitive), longCongestedTime)
	w.competitiveUntil = now + w.competitiveFor
	w.packets = max(w.packets, min(leastOpen, w.maximum))
}

// Acknowledged grows the window after the peer has acknowledged packets of the underWay ones.
func (w *Window) Acknowledged(packets, underWay int, now time.Duration) {
	w.underWay = underWay
	switch {
	case packets <= 0, w.probe.left > 0:
		return
	case !w.Congested(now):
		w.packets += math.Floor(max(float64(packets)*openGrowth, 1))
	case float64(2*underWay) < w.packets, w.last > w.target():
		return // the window does not limit the sender, or the queue is too long already
	case w.onTarget >= onTargetTrips && (w.packets < nearLimit*w.limit || w.packets >= beyondLimit*w.limit):
		w.packets += float64(packets) * openGrowth
	case w.packets < 1 && w.notified && now < w.notifiedAt+markedTrips*w.roundTrip() && 2*w.last < w.target():
		// Many senders share a queue that marks long before the round trip reaches the target. If
		// all of them added as much as below, they would overrun the queue before marks have an
		// effect.
		w.packets += growth * float64(packets) * max(w.packets, leastShare)
	default:
		// Below one packet, acknowledgements are more than a round trip apart.
		w.packets += growth * float64(packets) / max(w.packets, leastShare)
	}
	w.packets = min(w.packets, w.maximum)
}

// TimedOut notes that no answer came in time. The cause may be a busy host, so this does not
// show congestion. But before anything has come through, the window becomes one packet: when
// many senders begin at once, larger ones would overrun the path again and again.
func (w *Window) TimedOut(now time.Duration) {
	if !w.measured {
		w.cut(0, 1, now)
	} else if w.Congested(now) {
		w.Lost(now)
	} else if w.mayCut(now) {
		w.cut(0.5, min(w.packets, leastOpen), now)
	}
}

// Lost notes that a packet was lost: later ones have arrived. Losses within one round trip
// count once.
func (w *Window) Lost(now time.Duration) {
	w.ineffective = 0
	if !w.mayCut(now) {
		return
	}
	w.endProbe()
	if !w.everCut || now > w.cutAt+3*w.roundTrip() {
		w.losses = 0
	}
	w.losses++
	least := min(w.packets, leastOpen)
	if w.losses >= congestionLosses {
		w.competitiveFor, w.competitiveUntil = 0, 0
	}
	if now >= w.competitiveUntil && (!w.measured || w.queued(w.last) || w.losses >= congestionLosses) {
		w.markCongested(now)
		least = w.least()
	}
	w.onTarget, w.limit = 0, w.packets
	w.cut(0.5, least, now)
}

// Marked notes a congestion notification, and reports whether it reduced the window.
// Notifications within one round trip count once.
func (w *Window) Marked(now time.Duration) bool {
	w.ineffective, w.competitiveUntil = 0, 0
	if !w.mayCut(now) {
		return false
	}
	w.endProbe()
	if !w.notified {
		w.notified, w.fraction = true, 1
	} else {
		passed := float64(now-w.notifiedAt) / float64(w.roundTrip())
		w.fraction = w.fraction*math.Pow(1-dcqcnWeight, passed) + dcqcnWeight
		w.fraction = min(w.fraction, 1)
	}
	w.notifiedAt = now
	w.markCongested(now)
	w.onTarget = 0
	w.cut(1-w.fraction/2, w.least(), now)
	return true
}

// markCongested marks the path as congested.
func (w *Window) markCongested(now time.Duration) {
	w.congestedAt = now
	w.congestedUntil = now + congestedTime
}

// least returns the window at which a packet leaves every maxInterval. It is at most one
// packet, for a longer round trip.
func (w *Window) least() float64 {
	return min(float64(w.roundTrip())/float64(maxInterval), 1)
}

func (w *Window) mayCut(now time.Duration) bool {
	return !w.everCut || now >= w.cutAt+w.roundTrip()
}

func (w *Window) cut(factor, least float64, now time.Duration) {
	w.packets = max(w.packets*factor, min(least, w.packets))
	w.cutAt, w.everCut = now, true
}
