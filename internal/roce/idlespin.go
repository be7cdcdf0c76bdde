package roce

import (
	"runtime"
	"time"
)

// idleSpin decides how long a goroutine of the device looks for more when it has found
// nothing, before it sleeps. To be woken takes tens of microseconds, and a peer whose requests
// follow one another pays them for each batch; to look costs a processor. So it looks on only
// while what comes next has come soon of late.
type idleSpin struct {
	longest time.Duration // it looks on for no longer
	limit   time.Duration // so long does it now
	since   time.Duration // it has found nothing since then
	looks   int           // since then
}

const (
	// defaultSpin is the longest time for which a goroutine looks for nothing.
	defaultSpin = 50 * time.Microsecond
	// soonAfter times the longest time after work, more has come soon: being woken takes part
	// of that.
	soonAfter = 3
	// shortestSpin is not worth looking at the clock.
	shortestSpin = 5 * time.Microsecond
	// idleRounds is how often it looks again at least, before it sleeps.
	idleRounds = 2
	// maxLooks ends it where the clock stands still.
	maxLooks = 1 << 14
)

func newIdleSpin(longest time.Duration) idleSpin {
	switch {
	case longest < 0 || runtime.GOMAXPROCS(0) == 1:
		longest = 0 // whoever is to send the next packet may need the processor
	case longest == 0:
		longest = defaultSpin
	}
	return idleSpin{longest: longest}
}

// looksOn is called after each look, and reports whether there is to be another before the
// goroutine sleeps.
func (s *idleSpin) looksOn(now time.Duration, found bool) bool {
	if found {
		s.looks = 0
		return true
	}
	if s.looks++; s.looks == 1 {
		s.since = now
	}
	return s.looks < idleRounds || now-s.since < s.limit && s.looks < maxLooks
}

// woken is called when the goroutine has slept.
func (s *idleSpin) woken(now time.Duration) {
	s.looks = 0
	if now-s.since <= soonAfter*s.longest {
		s.limit = s.longest
	} else if s.limit /= 2; s.limit < shortestSpin {
		s.limit = 0
	}
}
