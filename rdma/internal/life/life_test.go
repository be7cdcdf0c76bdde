package life

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const closeWait = time.Second

var start = time.Unix(1, 0)

// Whatever happens, in whatever order: a life makes legal steps only, gives each action once and in
// order, and is over when the device has given back everything and the deadlines have passed.
func TestLifeEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := &Life{}, start
		var given []Action
		do := func(before Phase, a Action) {
			if after := l.Phase(); after != before {
				require.Greater(t, after, before, "it never goes back")
			}
			for _, one := range []Action{Drain, Tell, ShutQP, Destroy} {
				if a&one != 0 {
					given = append(given, one)
				}
			}
		}
		polls := rapid.Bool().Draw(t, "polls")
		how := rapid.SampledFrom([]DisconnectMethod{Abort, Silent, ByNotice, ByAnsweredNotice, ByCM}).Draw(t, "method")
		events := map[string]func() Action{
			"connect":      func() Action { l.Connect(); return 0 },
			"connected":    func() Action { l.Connected(); return 0 },
			"fail":         func() Action { return l.Fail() },
			"close":        func() Action { return l.Close(now, how, closeWait) },
			"leaving":      func() Action { return learn(l, Leaving, now, how) },
			"left":         func() Action { return learn(l, Left, now, how) },
			"die":          func() Action { l.Die(); return l.Abandon(now) },
			"drained":      func() Action { return l.Drained(now) },
			"told":         func() Action { return l.Told(now) },
			"untold":       func() Action { return l.Untold(now) },
			"break":        func() Action { return l.Break(now) },
			"takes":        func() Action { l.Takes(l.phase < Shut); return 0 },
			"last receive": func() Action { return l.LastReceive() },
			"due":          func() Action { now = now.Add(time.Millisecond); return l.Due(now) },
			"returned": func() Action {
				if !slices.Contains(given, ShutQP) {
					return 0
				}
				return l.Returned(now)
			},
		}
		names := make([]string, 0, len(events))
		for name := range events {
			names = append(names, name)
		}
		slices.Sort(names)
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			before := l.Phase()
			do(before, events[rapid.SampledFrom(names).Draw(t, "event")]())
			if l.Phase().Closing() {
				require.False(t, l.Deadline(now, polls).IsZero(), "it cannot last for ever")
			}
		}
		do(l.Phase(), l.Close(now, how, closeWait))
		for range 3 { // a deadline, the queue pair's end, the last receive
			if at := l.Deadline(now, polls); !at.IsZero() {
				now = now.Add(closeWait)
				do(l.Phase(), l.Due(now))
			}
			do(l.Phase(), l.Returned(now))
		}
		require.Equal(t, Passing, l.Phase())
		for _, once := range []Action{Drain, Destroy} {
			require.LessOrEqual(t, count(given, once), 1)
		}
		require.Equal(t, Destroy, given[len(given)-1])
		require.Contains(t, given, ShutQP)
		if i := slices.Index(given, Tell); i >= 0 {
			require.Contains(t, given[:i], Drain)
		}
		l.Passed()
		require.Equal(t, Gone, l.Phase())
	})
}

// What the peer has done is known in either order: it has closed the connection, and its process is
// dead. A dead peer serves nothing, so the connection then ends at once.
func TestPeerClosesAndDies(t *testing.T) {
	for _, how := range []Peer{Leaving, Left} {
		for _, diesFirst := range []bool{false, true} {
			l := &Life{}
			l.Connect()
			l.Connected()
			if diesFirst {
				l.Die()
			}
			require.True(t, l.Learn(how))
			require.False(t, l.Learn(how))
			if !diesFirst {
				l.Die()
			}
			require.Equal(t, how, l.Peer())
			require.True(t, l.Dead())
			require.Equal(t, ShutQP, l.PeerClosed(start, ByCM, closeWait))
			require.Equal(t, Shut, l.Phase())
		}
	}
}

func learn(l *Life, p Peer, now time.Time, how DisconnectMethod) Action {
	if !l.Learn(p) {
		return 0
	}
	return l.PeerClosed(now, how, closeWait)
}

func count(list []Action, a Action) (n int) {
	for _, x := range list {
		if x == a {
			n++
		}
	}
	return n
}

// end is one of two ends that answer each other's notices.
type end struct {
	Life
	peer     *end
	draws    func() bool // reports whether a packet is lost
	requests []request   // posted, in order
	notice   request     // behind them
	telling  bool        // notice was posted
	written  bool        // the peer's notice has arrived, and nobody has read it
	works    bool        // the queue pair
}

type request struct{ arrived, acknowledged bool }

func (e *end) do(now time.Time, a Action) {
	if a&Tell != 0 {
		e.telling = true
	}
	if a&ShutQP != 0 {
		e.works = false
		e.do(now, e.Returned(now))
	}
}

// repeat sends a request, again if need be, and reports whether it is acknowledged.
func (e *end) repeat(r *request) bool {
	if r.acknowledged || !e.works || !e.peer.works || e.draws() {
		return r.acknowledged
	}
	r.arrived = true
	r.acknowledged = !e.draws()
	return r.acknowledged
}

// work is a millisecond of an end.
func (e *end) work(now time.Time) {
	drained := true
	for i := range e.requests {
		drained = e.repeat(&e.requests[i]) && drained
	}
	if drained && e.Phase() == Draining {
		e.do(now, e.Drained(now))
	}
	if e.telling && !e.notice.acknowledged {
		arrived := e.notice.arrived
		acknowledged := e.repeat(&e.notice)
		e.peer.written = e.peer.written || e.notice.arrived && !arrived
		if acknowledged {
			e.do(now, e.Told(now))
		}
	}
	if e.written && !e.draws() {
		e.written = false
		e.do(now, learn(&e.Life, Leaving, now, ByAnsweredNotice))
	}
	e.do(now, e.Due(now))
}

// No request fails because one end closes, or both do, however packets are lost: an end shuts its
// queue pair when its own requests and those of the peer are acknowledged. And both ends end.
func TestEndsThatAnswerLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		losses := rapid.IntRange(0, 40).Draw(t, "losses")
		draws := func() bool {
			if losses == 0 || !rapid.Bool().Draw(t, "lost") {
				return false
			}
			losses--
			return true
		}
		a, b := &end{draws: draws, works: true}, &end{draws: draws, works: true}
		a.peer, b.peer = b, a
		now := start
		for _, e := range []*end{a, b} {
			e.Connect()
			e.Connected()
			e.requests = make([]request, rapid.IntRange(0, 3).Draw(t, "requests"))
		}
		closes := [2]int{rapid.IntRange(0, 5).Draw(t, "a closes"), rapid.IntRange(0, 50).Draw(t, "b closes")}
		for ms := range 2000 {
			now = now.Add(time.Millisecond)
			for i, e := range []*end{a, b} {
				if ms == closes[i] {
					e.do(now, e.Close(now, ByAnsweredNotice, closeWait))
				}
				e.work(now)
			}
		}
		for _, e := range []*end{a, b} {
			require.Equal(t, Passing, e.Phase())
			for _, r := range e.requests {
				require.True(t, r.acknowledged)
			}
		}
	})
}

// Each end of a connection whose peer does nothing any more ends when its time is over.
func TestPeerThatNeverAnswers(t *testing.T) {
	for how, phases := range map[DisconnectMethod][]Phase{
		Abort: {}, Silent: {Draining}, ByNotice: {Draining, Telling}, ByAnsweredNotice: {Draining, Telling, Confirming}, ByCM: {Draining, Telling, Confirming},
	} {
		for n := range len(phases) + 1 {
			l, now := &Life{}, start
			l.Connect()
			l.Connected()
			a := l.Close(now, how, closeWait)
			if n > 1 {
				l.Drained(now)
			}
			if n > 2 {
				l.Told(now)
			}
			if n > 0 {
				require.Equal(t, phases[n-1], l.Phase())
				require.Zero(t, a&ShutQP)
				now = now.Add(closeWait)
				a = l.Due(now)
			}
			if n > 0 || how == Abort {
				require.Equal(t, ShutQP, a)
				require.Equal(t, Destroy, l.Returned(now))
			}
		}
	}
}

// A queue pair that may still take a receive off the shared queue waits for the event, or a while.
func TestLastReceive(t *testing.T) {
	for _, reported := range []bool{false, true} {
		l := &Life{}
		l.Connect()
		l.Takes(true)
		require.Equal(t, ShutQP, l.Close(start, Abort, 0))
		require.Zero(t, l.Returned(start))
		require.Equal(t, Retired, l.Phase())
		if reported {
			require.Equal(t, Destroy, l.LastReceive())
			continue
		}
		require.Zero(t, l.Due(start))
		require.Equal(t, Destroy, l.Due(l.Deadline(start, true)))
	}
}

// A closing connection is looked at in between only if its device does not report what the peer does.
func TestPolls(t *testing.T) {
	l := &Life{}
	l.Connect()
	l.Connected()
	require.Equal(t, Drain, l.Close(start, ByCM, closeWait))
	require.Equal(t, Tell, l.Drained(start))
	require.Zero(t, l.Told(start))
	require.Equal(t, Confirming, l.Phase())
	require.Equal(t, start.Add(closeWait), l.Deadline(start, false))
	require.Equal(t, start.Add(poll), l.Deadline(start, true))
	near := start.Add(closeWait - time.Millisecond)
	require.Equal(t, start.Add(closeWait), l.Deadline(near, true))
}
