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
	// The clock is read after this many passes without events. An event counts as several passes,
	// since its callback may take long.
	passesPerCheck  = 64
	eventWeight     = 8
	passTimeFactor  = 4
	longestExpected = 5 * time.Millisecond
)

// timeslice measures how long the engine has kept the processor.
type timeslice struct {
	weight int // of passes and events since the last check
	passes int // since the last check
	length time.Duration

	// Times are measured from epoch: Go reads the clock faster where it needs no date.
	epoch     time.Time
	passBegin time.Duration
	checked   time.Duration
	begin     time.Duration
}

func (s *timeslice) now() time.Duration { return time.Since(s.epoch) }

// checkDue reports whether this pass is timed and checked.
func (s *timeslice) checkDue() bool { return s.weight >= passesPerCheck }

// beginPass is called before each pass.
func (s *timeslice) beginPass() {
	if s.checkDue() {
		s.passBegin = s.now()
	}
}

// endPass is called after each pass, with the number of events that it handled. It
// yields when the slice is over.
func (s *timeslice) endPass(handled int) {
	s.passes++
	if !s.checkDue() {
		s.weight += 1 + eventWeight*handled
		return
	}
	if now := s.now(); s.over(now) {
		runtime.Gosched()
		s.resume(now, s.now())
	}
}

// over reports whether it is time to yield.
func (s *timeslice) over(now time.Duration) bool {
	if s.lostProcessor(now) {
		s.begin = now
	}
	s.checked, s.passes, s.weight = now, 0, 0
	return now-s.begin >= max(s.length, minSlice)
}

// resume starts a slice as long as the time just spent off the processor: other goroutines
// give the processor back only when they are preempted, and the engine keeps its share.
func (s *timeslice) resume(left, back time.Duration) {
	s.begin, s.checked, s.length = back, back, back-left
}

// lostProcessor reports whether the engine slept or lost the processor since the last check: its
// passes account for less than a quarter of a long time.
func (s *timeslice) lostProcessor(now time.Duration) bool {
	passed := now - s.checked
	return passed > longestExpected && passed > passTimeFactor*time.Duration(s.passes)*(now-s.passBegin)
}
