package congestion

import (
	"math"
	"time"
)

// Window is how many packets of a reliable connection may be under way. Below one packet,
// it is time that keeps them apart.
//
// A window is open until the path is known to be congested. Then it grows by a quarter in
// each round trip and is halved by a loss, whatever the round trip is: on hosts that share
// their processors, a long one says more about their schedulers than about the path.
//
// The path counts as congested for a while once a packet was marked, or was lost while the round
// trip was longer than on the empty path. Then the round trip is held near a target. The smaller
// the window, the higher its target, so that the windows that share a queue become equal.
//
// The window is in competitive mode for a while where a smaller window has no effect: with at most
// twice the least window the round trip stayed above the target, without a mark or loss. Then
// other senders that do not yield keep the queue up, or it is a queue for a processor, and a window
// that yields is left with nothing. In this mode it is open, and a single loss does not count as
// congestion. Marks, and losses in a row, end the mode.
type Window struct {
	packets float64
	most    float64

	base     time.Duration // the shortest round trip so far: that of the empty path
	smoothed time.Duration
	last     time.Duration
	measured bool
	lowest   time.Duration // of the last few round trips, as counted
	counted  int
	clean    int // round trips in a row that were no longer than the target
	// ineffective is how many trends in a row a smaller window has not changed.
	ineffective int
	limit       float64 // packets when one was last lost; zero: not known
	underWay    int     // packets, when some were last acknowledged
	probe       rttProbe

	competitiveFor   time.Duration // how long the last competitive mode was; zero: smaller windows have had an effect since
	competitiveUntil time.Duration

	losses     int           // in a row
	provenAt   time.Duration // when a mark or loss last showed congestion
	until      time.Duration // congested until then
	cutAt      time.Duration // when it was last made smaller
	everCut    bool
	fraction   float64 // of packets that are marked, about: the α of DCQCN
	notified   bool
	notifiedAt time.Duration // when fraction was last changed
}

const (
	// openGrowth is the part by which an open window grows in a round trip, and one of a
	// congested path after cleanTrips.
	openGrowth = 1.0 / 4
	cleanTrips = 5
	// nearLimit and beyondLimit are the parts of the window in which a packet was last lost
	// between which it grows by growth alone.
	nearLimit, beyondLimit = 0.6, 1.25
	// growth is how many packets the window of a congested path grows by in a round trip.
	growth = 1.0 / 4
	// leastOpen is the least window of a path without congestion.
	leastOpen = 4

	// targetQueue is how much longer than on the empty path the round trip may be, and
	// targetShare how much longer still for a window of one packet: it goes by the square
	// root of the window, down to leastShare.
	targetQueue = 200 * time.Microsecond
	targetShare = 200 * time.Microsecond
	leastShare  = 1.0 / 4
	// settled is how much longer it is at least if there is a queue, unless it is twice as
	// long.
	settled = 50 * time.Microsecond
	// insistence is how many losses in a row, with a round trip or two between them, show
	// congestion that no round trip shows.
	insistence = 4
	// overload is the β of Swift: the part of the excess that the window is cut by.
	overload = 0.8
	// spike is how many times the target a round trip is that counts only if the one before
	// was long too.
	spike = 2

	// memory is how long a path counts as congested after a mark or loss; longMemory is the
	// same while the round trip shows a queue that never empties.
	memory     = 2 * time.Second
	longMemory = 30 * time.Second
	trend      = 8 // round trips
	// ineffectiveTrends is how many trends show that smaller windows have no effect. Competitive mode
	// then lasts for leastCompetitive, and twice as long each time, up to longMemory.
	ineffectiveTrends = 4
	leastCompetitive  = 2 * time.Second

	// weight is the g of DCQCN.
	weight = 1.0 / 16
	// maxInterval is the longest time from one packet to the next: whatever the signals
	// are, and whoever forges them, so much may always leave.
	maxInterval = 5 * time.Millisecond
	// minInterval is the shortest that is worth a timer.
	minInterval = 50 * time.Microsecond
	// unmeasured stands for the round trip until there is one.
	unmeasured = time.Millisecond
)

// Start begins anew, with a window of so many packets that grows to most.
func (w *Window) Start(packets, most int) {
	*w = Window{packets: float64(packets), most: float64(most)}
}

// Governed reports whether the path is known to be congested.
func (w *Window) Congested(now time.Duration) bool { return now < w.until }

// Packets is how many packets may be under way, at least one.
func (w *Window) Packets(now time.Duration) int {
	n := w.packets
	if w.Interval(now) > 0 {
		n = math.Ceil(n)
	}
	return max(int(n), 1)
}

// Interval is the time from one packet to the next. Zero: they may leave together.
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

// queued reports whether a round trip is so long that there is a queue.
func (w *Window) queued(t time.Duration) bool { return t > w.base+min(settled, w.base) }

// target is the round trip that the window of a congested path is held at.
func (w *Window) target() time.Duration {
	return w.base + targetQueue + time.Duration(float64(targetShare)/math.Sqrt(max(w.packets, leastShare)))
}

// RoundTrip takes a measurement of the time to the peer and back, of a packet that was to be
// acknowledged at once.
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
		if w.Congested(now) && w.queued(w.lowest) && now < w.provenAt+longMemory {
			w.until = max(w.until, now+memory)
		}
		w.considerCompetitive(now)
		w.considerProbe(now)
	}
	if !w.Congested(now) || w.probe.left > 0 {
		return
	}
	target := w.target()
	if before <= target && t > spike*target {
		return // more likely a scheduler's doing than the path's; the next one will tell
	}
	over := t - target
	if over <= 0 {
		if w.clean++; w.clean == cleanTrips {
			w.competitiveFor = 0
		}
		return
	}
	w.clean = 0
	if w.packets > w.least() && w.mayCut(now) {
		w.cut(1-min(overload*float64(over)/float64(t), 0.5), w.least(), now)
	}
}

// considerCompetitive begins competitive mode if the last trends show that a smaller window has no
// effect.
func (w *Window) considerCompetitive(now time.Duration) {
	if !w.Congested(now) || w.packets > 2*w.least() || w.lowest <= w.target() {
		w.ineffective = 0
		return
	}
	if w.ineffective++; w.ineffective < ineffectiveTrends {
		return
	}
	w.ineffective, w.until = 0, now
	w.competitiveFor = min(max(2*w.competitiveFor, leastCompetitive), longMemory)
	w.competitiveUntil = now + w.competitiveFor
	w.packets = max(w.packets, min(leastOpen, w.most))
}

// Acknowledged lets the window grow: packets of those under way have arrived.
func (w *Window) Acknowledged(packets, underWay int, now time.Duration) {
	w.underWay = underWay
	switch {
	case packets <= 0, w.probe.left > 0:
		return
	case !w.Congested(now):
		w.packets += math.Floor(max(float64(packets)*openGrowth, 1))
	case float64(2*underWay) < w.packets, w.last > w.target():
		return // it is not this window that bounds them, or there are too many already
	case w.clean >= cleanTrips && (w.packets < nearLimit*w.limit || w.packets >= beyondLimit*w.limit):
		w.packets += float64(packets) * openGrowth
	default:
		// Below one packet, an acknowledgement comes after more than a round trip.
		w.packets += growth * float64(packets) / max(w.packets, leastShare)
	}
	w.packets = min(w.packets, w.most)
}

// TimedOut notes that no answer has come in time. That may be the doing of a host that is
// busy: it shows no congestion.
func (w *Window) TimedOut(now time.Duration) {
	if w.Congested(now) {
		w.Lost(now)
	} else if w.mayCut(now) {
		w.cut(0.5, min(w.packets, leastOpen), now)
	}
}

// Lost notes that a packet was lost: others that left after it have arrived. Losses of one
// round trip count once.
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
	if w.losses >= insistence {
		w.competitiveFor, w.competitiveUntil = 0, 0
	}
	if now >= w.competitiveUntil && (!w.measured || w.queued(w.last) || w.losses >= insistence) {
		w.prove(now)
		least = w.least()
	}
	w.clean, w.limit = 0, w.packets
	w.cut(0.5, least, now)
}

// Marked notes a congestion notification. It reports whether it made the window smaller:
// those of one round trip count once.
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
		w.fraction = w.fraction*math.Pow(1-weight, passed) + weight
		w.fraction = min(w.fraction, 1)
	}
	w.notifiedAt = now
	w.prove(now)
	w.clean = 0
	w.cut(1-w.fraction/2, w.least(), now)
	return true
}

// prove notes that the path is congested.
func (w *Window) prove(now time.Duration) {
	w.provenAt = now
	w.until = now + memory
}

// least is the window at which a packet leaves every maxInterval, or one packet where the
// round trip is longer.
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
