// Package life is the life of one end of a connection, as a state machine: its phase, and what is
// known of the peer. Events move it on, and give the actions that follow. It has no device, no
// lock and no clock.
//
// All ends close in one way, whichever end began: the tasks at the device finish (Draining), the
// peer is told (Telling), the end serves the peer's requests until the peer has confirmed
// (Confirming), and the queue pair is shut (Shut). Each of these steps falls away where it has no
// purpose, and all together are over at a deadline.
package life

import "time"

// Phase is a part of the life.
type Phase uint8

// The phases, in order. A life never goes back.
const (
	Exported   Phase = iota
	Connecting       // waits for the peer
	Ready            // both ends are connected
	Draining         // closed by either end; the tasks at the device finish
	Telling          // the tasks are done, and the peer is being told
	Confirming       // the peer has been told; its requests are served until it confirms
	Failed           // the queue pair is in error, and the program has not closed the connection
	Shut             // closed, with the queue pair in error: the device gives back what it has
	Retired          // it has, and the queue pair may still take a receive off the shared queue
	Passing          // unhandled completions may belong to the connection
	Gone
)

// next has the legal steps from each phase.
var next = [...][]Phase{
	Exported:   {Connecting, Failed, Shut},
	Connecting: {Ready, Draining, Failed, Shut},
	Ready:      {Draining, Failed, Shut},
	Draining:   {Telling, Shut},
	Telling:    {Confirming, Shut},
	Confirming: {Shut},
	Failed:     {Shut},
	Shut:       {Retired, Passing},
	Retired:    {Passing},
	Passing:    {Gone},
	Gone:       {},
}

// Usable reports whether tasks run on the connection, or may in future.
func (p Phase) Usable() bool { return p <= Ready }

// Closing reports whether the connection is closed, and its queue pair works.
func (p Phase) Closing() bool { return p >= Draining && p <= Confirming }

// Peer is what is known of the peer.
type Peer uint8

// In the order in which an end can learn them.
const (
	Unknown Peer = iota
	Leaving      // has closed the connection, and serves requests until this end has told it
	Left         // has closed the connection, and serves nothing
)

// DisconnectMethod is how an end lets the peer know that it closes.
type DisconnectMethod uint8

const (
	Abort            DisconnectMethod = iota // nobody has to know: the queue pair is shut at once
	Silent                                   // nobody is told, but tasks finish
	ByNotice                                 // by a request, which the peer's device acknowledges
	ByAnsweredNotice                         // by a request, which the peer answers when its tasks are done
	ByCM                                     // by a message of the connection manager, which the peer confirms
)

// Action is a set of things to do, in this order.
type Action uint8

const (
	Drain   Action = 1 << iota // post no more tasks; Drained when the device has none left
	Tell                       // tell the peer; then Told, or Untold
	ShutQP                     // put the queue pair in error; Returned when nothing is at the device
	Destroy                    // destroy the connection when its completions have been handled; then Passed
)

const (
	// answerTime is how long an end waits for the answer to its notice, and the other end for its
	// tasks before it answers. They may be messages that nobody takes any more.
	answerTime = 500 * time.Millisecond
	// answerRepeats is how long an answer is repeated. If its acknowledgement is lost, the peer has
	// gone already.
	answerRepeats = 100 * time.Millisecond
	// poll is how often a closing connection is looked at, if the device does not report what its peer
	// does.
	poll = 50 * time.Millisecond
	// lastReceiveGrace is how long a closed queue pair waits for the event that it takes no more
	// receives off the shared queue. Not every driver reports the event.
	lastReceiveGrace = 100 * time.Millisecond
)

// Life is the life of one connection. Its zero value is Exported.
type Life struct {
	phase    Phase
	peer     Peer
	dead     bool // the peer's process is dead
	method   DisconnectMethod
	until    time.Time // when the present phase is over, from Draining on; zero: open
	takes    bool      // the queue pair may take receives off the shared queue
	returned bool      // nothing is left at the device
}

// Phase is the present phase.
func (l *Life) Phase() Phase { return l.phase }

// Peer is what is known of the peer.
func (l *Life) Peer() Peer { return l.peer }

// Dead reports whether the peer's process is dead. It may have closed the connection before.
func (l *Life) Dead() bool { return l.dead }

// peerGone reports whether the peer serves nothing any more.
func (l *Life) peerGone() bool { return l.dead || l.peer == Left }

// enter makes a step, if it is legal.
func (l *Life) enter(p Phase) bool {
	for _, legal := range next[l.phase] {
		if legal == p {
			l.phase = p
			return true
		}
	}
	return false
}

// limit shortens the time of the phase.
func (l *Life) limit(until time.Time) {
	if until.Before(l.until) {
		l.until = until
	}
}

// Connect begins to connect.
func (l *Life) Connect() bool { return l.enter(Connecting) }

// Connected makes the connection Ready.
func (l *Life) Connected() bool { return l.enter(Ready) }

// Takes notes whether the queue pair can take receives off the shared queue.
func (l *Life) Takes(takes bool) { l.takes = takes }

// Fail ends a usable connection with an error.
func (l *Life) Fail() Action {
	if l.phase.Usable() && l.enter(Failed) {
		return ShutQP
	}
	return 0
}

// Close ends the connection, for at most wait. A connection that has failed is retired.
func (l *Life) Close(now time.Time, how DisconnectMethod, wait time.Duration) Action {
	switch {
	case l.phase == Failed && l.enter(Shut):
		return l.retire(now)
	case !l.phase.Usable():
		return 0
	case how == Abort || l.peerGone() || !l.enter(Draining):
		return l.shut(now)
	}
	l.method, l.until = how, now.Add(wait)
	if l.peer == Leaving {
		l.limit(now.Add(answerTime))
	}
	return Drain
}

// Learn notes that the peer is leaving or has left, and reports whether that is new, and of use.
// Then call PeerClosed when earlier completions have been handled.
func (l *Life) Learn(p Peer) bool {
	if p <= l.peer || p < Leaving || !l.phase.Usable() && !l.phase.Closing() {
		return false
	}
	l.peer = p
	return true
}

// PeerClosed ends the connection because the peer has closed it.
func (l *Life) PeerClosed(now time.Time, how DisconnectMethod, wait time.Duration) Action {
	switch {
	case l.phase.Usable() && l.peer == Leaving:
		return l.Close(now, how, wait)
	case l.phase == Confirming, l.phase.Usable(), l.phase.Closing() && l.peerGone():
		return l.shut(now)
	case l.phase == Draining:
		l.limit(now.Add(answerTime))
	case l.phase == Telling:
		l.limit(now.Add(answerRepeats))
	}
	return 0
}

// Die notes that the peer's process is dead.
func (l *Life) Die() { l.dead = true }

// Drained notes that no tasks are left at the device.
func (l *Life) Drained(now time.Time) Action {
	switch {
	case l.phase != Draining:
		return 0
	case l.method == Silent:
		return l.shut(now)
	}
	l.enter(Telling)
	if l.peer == Leaving {
		l.limit(now.Add(answerRepeats))
	}
	return Tell
}

// Told notes that the peer has been told.
func (l *Life) Told(now time.Time) Action {
	switch {
	case l.phase != Telling:
		return 0
	case l.method == ByNotice, l.method == ByAnsweredNotice && (l.peer >= Leaving || l.dead):
		return l.shut(now)
	}
	l.enter(Confirming)
	if l.method == ByAnsweredNotice {
		l.limit(now.Add(answerTime))
	}
	return 0
}

// Untold notes that nobody is there to be told.
func (l *Life) Untold(now time.Time) Action {
	if l.phase == Telling || l.phase == Confirming {
		return l.shut(now)
	}
	return 0
}

// Break notes that the queue pair of a closing connection has failed. The connection manager can
// still tell the peer.
func (l *Life) Break(now time.Time) Action {
	switch {
	case !l.phase.Closing():
		return 0
	case l.method != ByCM:
		return l.shut(now)
	case l.phase == Draining:
		l.enter(Telling)
		return Tell | ShutQP
	}
	return ShutQP
}

// Abandon ends a closing connection at once.
func (l *Life) Abandon(now time.Time) Action {
	if l.phase.Closing() {
		return l.shut(now)
	}
	return 0
}

// shut puts the queue pair in error.
func (l *Life) shut(now time.Time) Action {
	l.until = time.Time{}
	if !l.enter(Shut) {
		return 0
	}
	return ShutQP | l.retire(now)
}

// Returned notes that the device has given back everything.
func (l *Life) Returned(now time.Time) Action {
	l.returned = true
	return l.retire(now)
}

// retire ends a closed connection of which nothing is at the device.
func (l *Life) retire(now time.Time) Action {
	switch {
	case l.phase != Shut || !l.returned:
	case l.takes:
		l.enter(Retired)
		l.until = now.Add(lastReceiveGrace)
	case l.enter(Passing):
		return Destroy
	}
	return 0
}

// LastReceive notes that the queue pair takes no more receives off the shared queue.
func (l *Life) LastReceive() Action {
	l.takes = false
	if l.phase == Retired && l.enter(Passing) {
		return Destroy
	}
	return 0
}

// Passed notes that all completions have been handled.
func (l *Life) Passed() { l.enter(Gone) }

// Due ends the phase if its time is over.
func (l *Life) Due(now time.Time) Action {
	switch {
	case l.until.IsZero() || now.Before(l.until):
	case l.phase.Closing():
		return l.shut(now)
	case l.phase == Retired:
		return l.LastReceive()
	}
	return 0
}

// Deadline is when to call Due; zero: never. polls: the device does not report what the peer does, and
// the connection is looked at then.
func (l *Life) Deadline(now time.Time, polls bool) time.Time {
	switch {
	case l.phase.Closing():
		if at := now.Add(poll); polls && at.Before(l.until) {
			return at
		}
		return l.until
	case l.phase == Retired:
		return l.until
	}
	return time.Time{}
}
