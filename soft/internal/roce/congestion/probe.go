package congestion

import "time"

// rttProbe shrinks the window of a congested path for some round trips, as BBR does, to
// measure a round trip closer to that of the empty path. Without it, a window that started
// when there was a queue already would keep that queue up.
type rttProbe struct {
	left         int           // round trips left; zero: no probe runs
	windowBefore float64       // the window before
	earliest     time.Duration // the next probe starts no earlier
}

const (
	probePart  = 1.0 / 8 // of the window
	probeTrips = 4
	// probeInterval is the least time between the starts of two probes.
	probeInterval = 100 * time.Millisecond
	// leastProbe is the smallest number of packets under way that is worth a probe.
	leastProbe = 8
)

// maybeProbe starts a probe if one is due.
func (w *Window) maybeProbe(now time.Duration) {
	if !w.Congested(now) || now < w.probe.earliest || w.underWay < leastProbe {
		return
	}
	w.probe = rttProbe{left: probeTrips, windowBefore: w.packets, earliest: now + probeInterval}
	w.packets = max(min(w.packets, float64(w.underWay))*probePart, min(w.packets, w.least()))
}

// endProbe ends a probe.
func (w *Window) endProbe() {
	if w.probe.left > 0 {
		w.probe.left = 0
		w.packets = max(w.packets, w.probe.windowBefore)
	}
}
