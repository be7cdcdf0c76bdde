// Package spin decides how long an idle goroutine polls before it sleeps.
package spin

import (
	"runtime"
	"time"
)

// Spin decides how long a goroutine of a device or an engine continues to poll after an empty
// poll, before it sleeps. A wake-up takes tens of microseconds, which a peer with successive
// requests pays for each batch; polling takes a processor, which the peer may need. So the
// goroutine continues only while recent events came shortly after it went idle, and not when it has
// just lost the processor to other programs. By default it polls for less time than yieldEvery, and
// so yields the processor by sleeping only.
type Spin struct {
	fixed   bool          // limit does not change
	longest time.Duration // upper bound of limit
	limit   time.Duration // how long it polls now before it sleeps
	since   time.Duration // time of the first empty poll in a row
	last    time.Duration // time of the last empty poll
	polls   int           // empty polls in a row
	frozen  int           // polls since the clock last moved
	wasted  int           // sleeps in a row after polls that found nothing in time
	yielded time.Duration // time of the last yield, or of the first empty poll in a row
	yields  bool          // the next yield gives the processor to other programs
	late    bool          // a yield has taken long since the last sleep, and nothing was found after it
}

const (
	// Default is the default of the longest time without an event before a sleep, and maxSpin the
	// longest that New takes.
	Default = 50 * time.Microsecond
	maxSpin = time.Millisecond
	// soonAfter: events count as soon if they come within soonAfter times the longest time
	// after the last work. The wake-up takes part of that time.
	soonAfter = 3
	// maxWasted is how many times in a row it polls in vain, although events come soon after.
	// From then on it polls only once in wastedPause sleeps.
	maxWasted   = 4
	wastedPause = 64
	// lateYield: if the next poll comes so late and finds nothing, others have had the processor, and
	// the goroutine polls only once in wastedPause sleeps too.
	lateYield = 100 * time.Microsecond
	// shortestSpin is the shortest time worth a look at the clock.
	shortestSpin = 5 * time.Microsecond
	// idleRounds is the least number of empty polls before a sleep.
	idleRounds = 2
	// yieldEvery is after how long it yields the processor to other programs: otherwise a thread that
	// was woken there would wait for the end of this one's time slice. Not sooner: beside busy
	// programs a yield takes a time slice, which is a hundred times as long as most answers.
	yieldEvery = 50 * time.Microsecond
	// maxFrozen ends the polling if the clock does not move: in testing/synctest it moves only
	// when all goroutines sleep.
	maxFrozen = 2000
)

// New returns a Spin that polls for at most longest without an event. Zero: the default;
// negative: it does not poll.
func New(longest time.Duration) Spin {
	switch {
	case longest < 0 || runtime.GOMAXPROCS(0) == 1:
		longest = 0 // the sender of the next packet may need the processor
	case longest == 0:
		longest = Default
	}
	return Spin{longest: min(longest, maxSpin)}
}

// Fixed returns a Spin that polls for limit without an event, whatever came before. If limit is
// not positive, it sleeps after the first empty poll.
func Fixed(limit time.Duration) Spin { return Spin{fixed: true, limit: limit} }

// Found is called after a poll that has found something.
func (s *Spin) Found() {
	if s.polls > idleRounds {
		s.wasted = 0
	}
	s.polls, s.late = 0, false
}

// KeepPolling is called after each poll, and reports whether the goroutine must poll again before
// it sleeps.
func (s *Spin) KeepPolling(now time.Duration, found bool) bool {
	if found {
		s.Found()
		return true
	}
	if s.polls++; s.polls == 1 {
		s.since, s.yielded = now, now
	}
	if s.polls > 1 && now-s.last > lateYield && !s.fixed {
		s.wasted, s.limit, s.late = maxWasted, 0, true
	}
	if s.yields = now-s.yielded >= yieldEvery; s.yields {
		s.yielded = now
	}
	if s.frozen++; now != s.last {
		s.last, s.frozen = now, 0
	}
	if s.polls < idleRounds && !s.fixed {
		return true
	}
	return now-s.since < s.limit && s.frozen < maxFrozen
}

// Polls reports whether the goroutine will poll for a while before it sleeps.
func (s *Spin) Polls() bool { return s.limit > 0 }

// Yield is called between two empty polls.
func (s *Spin) Yield() {
	runtime.Gosched()
	s.YieldThread()
}

// YieldThread is Yield for a goroutine that is bound to its thread, as in a call from C, or that no
// other one waits for: runtime.Gosched wakes another thread, to look for goroutines.
func (s *Spin) YieldThread() {
	if s.yields {
		yieldProcessor()
	}
}

// Woken is called when the goroutine has slept.
func (s *Spin) Woken(now time.Duration) {
	s.polls, s.frozen = 0, 0
	if s.fixed {
		return
	}
	late := s.late // others had the processor in that time, so that it says nothing about events
	s.late = false
	if !late && now-s.since > soonAfter*s.longest {
		if s.limit /= 2; s.limit < shortestSpin {
			s.limit = 0
		}
		s.wasted = 0
		return
	}
	if s.limit > 0 {
		s.wasted++
	}
	switch {
	case s.wasted < maxWasted:
		s.limit = s.longest
	case s.wasted < maxWasted+wastedPause:
		s.wasted++
		s.limit = 0
	default:
		s.wasted, s.limit = maxWasted-1, s.longest
	}
}
