package congestion

import "time"

// rttProbe makes the window of a congested path smaller for some round trips, as BBR does. They show
// the round trip of the empty path, or one nearer to it: the window may have begun when there was a
// queue already, and would keep that up.
type rttProbe struct {
	left    int           // round trips; zero: there is no probe
	packets float64       // the window before
	notYet  time.Duration // no other probe until then
}

const (
	probePart  = 1.0 / 8 // of the window
	probeTrips = 4
	// probeInterval is the least time from one probe to the next.
	probeInterval = 100 * time.Millisecond
	// leastProbe is the smallest window that is worth a probe.
	leastProbe = 8
)

// considerProbe begins a probe, if it is time for one.
func (w *Window) considerProbe(now time.Duration) {
	if !w.Congested(now) || now < w.probe.notYet || w.underWay < leastProbe {
		return
	}
	w.probe = rttProbe{left: probeTrips, packets: w.packets, notYet: now + probeInterval}
	w.packets = max(min(w.packets, float64(w.underWay))*probePart, min(w.packets, w.least()))
}

// endProbe ends a probe.
func (w *Window) endProbe() {
	if w.probe.left > 0 {
		w.probe.left = 0
		w.packets = max(w.packets, w.probe.packets)
	}
}
