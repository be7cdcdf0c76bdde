package congestion

import "time"

// trial has a governed window be smaller for some round trips. They show the empty path, or
// something nearer to it: the window may have begun when there was a queue already, and would
// keep that up.
type trial struct {
	left    int           // round trips; zero: there is none
	packets float64       // before
	notYet  time.Duration // no other one until then
}

const (
	trialPart  = 1.0 / 8 // of the window
	trialTrips = 4
	// trialInterval is the least time from one trial to the next.
	trialInterval = 100 * time.Millisecond
	// leastTrial is the window from which on it is worth one.
	leastTrial = 8
)

// consider begins a trial, if it is time for one.
func (w *Window) consider(now time.Duration) {
	if !w.Governed(now) || now < w.trial.notYet || w.underWay < leastTrial {
		return
	}
	w.trial = trial{left: trialTrips, packets: w.packets, notYet: now + trialInterval}
	w.packets = max(min(w.packets, float64(w.underWay))*trialPart, min(w.packets, w.least()))
}

// end ends a trial.
func (w *Window) end() {
	if w.trial.left > 0 {
		w.trial.left = 0
		w.packets = max(w.packets, w.trial.packets)
	}
}
