package pe

import (
	"runtime"
	"time"
)

// The Go runtime preempts a goroutine that has run for 10 ms, and its monitor then stays busy
// for milliseconds: that delays one message of twenty of a polling program. So the engine
// yields before.
const (
	minSlice = time.Millisecond
	// The clock is read after this many passes without events; a pass that handles
	// events may take long, and counts as several.
	passesPerCheck  = 64
	busyPassWeight  = 16
	passTimeFactor  = 4
	longestExpected = 5 * time.Millisecond
)

// timeslice measures how long the engine has kept the processor.
type timeslice struct {
	weight    int // of passes since the last check
	passes    int // since the last check
	passBegin time.Time
	checked   time.Time
	begin     time.Time
	length    time.Duration
}

// checkDue reports whether this pass is timed and checked.
func (s *timeslice) checkDue() bool { return s.weight >= passesPerCheck }

// beginPass is called before each pass.
func (s *timeslice) beginPass() {
	if s.checkDue() {
		s.passBegin = time.Now()
	}
}

// endPass is called after each pass, with the number of events that it handled. It
// yields when the slice is over.
func (s *timeslice) endPass(handled int) {
	s.passes++
	if !s.checkDue() {
		if s.weight++; handled > 0 {
			s.weight += busyPassWeight - 1
		}
		return
	}
	if now := time.Now(); s.over(now) {
		runtime.Gosched()
		s.resume(now, time.Now())
	}
}

// over reports whether it is time to yield.
func (s *timeslice) over(now time.Time) bool {
	if s.lostProcessor(now) {
		s.begin = now
	}
	s.checked, s.passes, s.weight = now, 0, 0
	return now.Sub(s.begin) >= max(s.length, minSlice)
}

// resume starts a slice as long as the time just spent off the processor: other goroutines
// give the processor back only when they are preempted, and the engine keeps its share.
func (s *timeslice) resume(left, back time.Time) {
	s.begin, s.checked, s.length = back, back, back.Sub(left)
}

// lostProcessor reports whether the engine slept or lost the processor since the last check: its
// passes account for less than a quarter of a long time.
func (s *timeslice) lostProcessor(now time.Time) bool {
	passed := now.Sub(s.checked)
	return passed > longestExpected && passed > passTimeFactor*time.Duration(s.passes)*now.Sub(s.passBegin)
}
