package roce

import (
	"math"
	"time"
)

// attendance decides who does the work of a shard: programs that poll, a goroutine that sleeps at the
// shard (shard.Sleep), or the device's own goroutine. It should be one of them only: several would
// wait for one lock, and be woken for the same packets. The device's goroutine leaves the work to the
// others while they are there, and looks after pauses whether they still are: a program may stop
// without arming a completion queue.
//
// Some programs poll only for the completions of their own requests, and then read memory until a peer
// has written there. Packets for them lie until the device's goroutine looks. When this has happened,
// the pauses are short for a while (shared memory), or the goroutine does the work although programs
// poll (sockets, which wake it without cost for the sender).
type attendance struct {
	polls   uint64 // of programs
	sleeps  uint64 // how often programs have armed a completion queue, to sleep then
	polling bool   // a program polls just now, and will again soon
	asleep  bool   // a program has armed a queue since the last poll of one that is not armed

	sleeper sleeper
	woken   bool   // since the device's goroutine looked last
	watched bool   // the device's goroutine looks in pollerGrace
	seen    uint64 // polls, when the device's goroutine looked last

	short      int  // pauses to come that are short
	overdue    int  // times in a row that packets have lain in a socket for a pause
	unattended bool // programs leave packets lying in sockets: the device's goroutine takes them
	inVain     int  // times in a row that it was then woken for nothing
}

// sleeper is what is known of the goroutine that sleeps at the shard.
type sleeper uint8

const (
	noSleeper sleeper = iota
	sleeping          // it does the work
	awake             // it has been woken, and sleeps or polls again soon
)

// work says where a round of progress has found work.
type work uint8

const (
	fromSockets work = 1 << iota
	fromMemory
	otherWork
)

const (
	// pollerGrace is how long the device's goroutine leaves the work to a program that has polled,
	// before it looks whether the program has polled again. If the program stops without arming a
	// completion queue, a packet may wait for two such pauses: there may have been a poll in the first.
	pollerGrace = time.Millisecond
	// shortPause is a compromise: each one takes a little time of a processor.
	shortPause = 20 * time.Microsecond
	// shortPauses is how many pauses are short after packets have lain in shared memory.
	shortPauses = 16
	// maxOverdue is how many times in a row packets may lie in a socket.
	maxOverdue = 2
	// maxInVain is how many times in a row the device's goroutine may then be woken for packets that
	// a program has taken. After that it leaves them to programs again.
	maxInVain = 16
	// untilCalled is a pause that ends when a goroutine that sleeps at the shard leaves, or has been
	// awake for a while.
	untilCalled = time.Duration(math.MaxInt64)
)

// Polls is called before a program makes progress. again: it will do so again soon. Polled is called
// after that.
func (a *attendance) Polls(again bool) {
	a.polls++
	a.polling = again
}

// Polled follows Polls.
func (a *attendance) Polled() { a.polling = false }

// Awake is called when a program looks into a queue that is not armed, or says that it stays awake.
func (a *attendance) Awake() { a.asleep = false }

// Sleeps is called when a program has armed a completion queue. It reports whether the device's
// goroutine must be called: to look at once.
func (a *attendance) Sleeps() (call bool) {
	a.sleeps++
	a.asleep = true
	return a.sleeper == noSleeper
}

// Enter is called by a goroutine that is going to sleep at the shard. It reports false if another one
// does.
func (a *attendance) Enter() bool {
	if a.sleeper == sleeping {
		return false
	}
	a.sleeper = sleeping
	return true
}

// Wakes is called when that goroutine no longer does the shard's work. It will soon poll or enter
// again. watch: the device's goroutine must look in pollerGrace. It takes over when it has then seen
// no wake-up and no poll since the look before. A timer for each wake-up would cost a system call or
// two, so there is at most one in pollerGrace.
func (a *attendance) Wakes() (watch bool) {
	a.sleeper, a.woken, a.asleep = awake, true, false
	watch = !a.watched
	a.watched = true
	return watch
}

// Leave is called when it will not. It reports whether the device's goroutine must be called.
func (a *attendance) Leave() (call bool) {
	if a.sleeper != awake {
		return false
	}
	a.sleeper = noSleeper
	return true
}

// Look is called by the device's goroutine before each round of work. It returns how long the
// goroutine leaves the work to others before it looks again; zero: it does the work.
func (a *attendance) Look() (pause time.Duration) {
	woken := a.woken
	a.woken, a.watched = false, a.sleeper == awake && woken
	switch {
	case a.sleeper == sleeping:
		return untilCalled
	case a.watched:
		a.seen = a.polls
		return untilCalled
	}
	a.sleeper = noSleeper
	if a.unattended || a.asleep || a.polls == a.seen {
		return 0
	}
	a.seen = a.polls
	if a.short > 0 {
		a.short--
		return shortPause
	}
	return pollerGrace
}

// Found is called by the device's goroutine when it has been woken, or a pause has ended, and it has
// made a round of progress. paused: a pause has ended, in which no program polled.
func (a *attendance) Found(found work, paused bool) {
	switch {
	case a.unattended && found != 0:
		a.inVain = 0
	case a.unattended:
		if a.inVain++; a.inVain >= maxInVain {
			a.unattended, a.inVain, a.overdue = false, 0, 0
		}
	case !paused:
	case found&fromSockets != 0:
		a.overdue++
		a.unattended = a.overdue >= maxOverdue
	default:
		a.overdue = 0
	}
	if paused && found&fromMemory != 0 {
		a.short = shortPauses
	}
}

// moment is a point in the order of what programs do.
type moment struct{ polls, sleeps uint64 }

// Now is the present moment.
func (a *attendance) Now() moment { return moment{a.polls, a.sleeps} }

// polledSince and sleptSince report whether a program has done so since m.
func (a *attendance) polledSince(m moment) bool { return a.polls != m.polls }
func (a *attendance) sleptSince(m moment) bool  { return a.sleeps != m.sleeps }
