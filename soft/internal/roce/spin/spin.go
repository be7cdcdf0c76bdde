// Package spin decides how long an idle goroutine polls before it sleeps.
package spin

import (
	"runtime"
	"time"
)

// Spin decides how long a goroutine of the device polls on when it has found nothing,
// before it sleeps. To be woken takes tens of microseconds, and a peer whose requests follow one
// another pays them for each batch; to poll costs a processor. So it polls on only while recent
// packets arrived shortly after it went idle.
type Spin struct {
	longest time.Duration // it polls on for no longer
	limit   time.Duration // so long does it now
	since   time.Duration // it has found nothing since then
	polls   int           // since then
	vain    int           // sleeps since it has found something in time
}

const (
	// defaultSpin is the longest time for which a goroutine polls for nothing, and maxSpin what
	// Config.Spin can make of it.
	defaultSpin = 50 * time.Microsecond
	maxSpin     = time.Millisecond
	// soonAfter times the longest time after work, more has come soon: being woken takes part
	// of that.
	soonAfter = 3
	// maxVain is how often in a row it polls on in vain, though more comes soon. Then it does so
	// once in vainPause sleeps.
	maxVain   = 4
	vainPause = 64
	// shortestSpin is not worth looking at the clock.
	shortestSpin = 5 * time.Microsecond
	// idleRounds is how often it polls again at least, before it sleeps.
	idleRounds = 2
	// yieldPolls is after how many polls other programs may have the processor: a thread that
	// has been woken there would wait for the end of this one's time slice. To yield takes as
	// long as several polls, and peers wait meanwhile.
	yieldPolls = 32
	// maxPolls ends it where the clock stands still.
	maxPolls = 1 << 16
)

// New returns one that polls for nothing for that long at most. Zero: the default; negative: not at
// all.
func New(longest time.Duration) Spin {
	switch {
	case longest < 0 || runtime.GOMAXPROCS(0) == 1:
		longest = 0 // whoever is to send the next packet may need the processor
	case longest == 0:
		longest = defaultSpin
	}
	return Spin{longest: min(longest, maxSpin)}
}

// PollsOn is called after each poll, and reports whether there is to be another before the
// goroutine sleeps.
func (s *Spin) PollsOn(now time.Duration, found bool) bool {
	if found {
		if s.polls > idleRounds {
			s.vain = 0
		}
		s.polls = 0
		return true
	}
	if s.polls++; s.polls == 1 {
		s.since = now
	}
	return s.polls < idleRounds || now-s.since < s.limit && s.polls < maxPolls
}

// Yield is called between two polls that find nothing.
func (s *Spin) Yield() {
	runtime.Gosched()
	if s.polls%yieldPolls == 0 {
		yieldProcessor()
	}
}

// Woken is called when the goroutine has slept.
func (s *Spin) Woken(now time.Duration) {
	s.polls = 0
	if now-s.since > soonAfter*s.longest {
		if s.limit /= 2; s.limit < shortestSpin {
			s.limit = 0
		}
		s.vain = 0
		return
	}
	if s.limit > 0 {
		s.vain++
	}
	switch {
	case s.vain < maxVain:
		s.limit = s.longest
	case s.vain < maxVain+vainPause:
		s.vain++
		s.limit = 0
	default:
		s.vain, s.limit = maxVain-1, s.longest
	}
}

// Idle reports whether the last poll has found nothing.
func (s *Spin) Idle() bool { return s.polls > 0 }
