package roce

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// trace replays events of a shard, one for each word, and returns what the device's goroutine does at
// each look: "works", or for how long it pauses.
//
//	poll, last: a program polls, and will again soon; or has armed its queue and polls once more
//	arm: a program arms its queue, to sleep then
//	enter, wake, leave: a goroutine sleeps at the shard, is woken, or goes for good
//	look: the device's goroutine looks who does the work
//	lain:WORK, woken:WORK: it finds that after a pause, or after it has slept; WORK is udp, memory or nothing
func trace(t *testing.T, a *attendance, events string) (looks []string) {
	t.Helper()
	found := map[string]work{"udp": fromSockets, "memory": fromMemory, "nothing": 0}
	for _, event := range strings.Fields(events) {
		name, what, _ := strings.Cut(event, ":")
		switch name {
		case "poll", "last":
			if name == "poll" {
				a.Awake()
			}
			a.Polls(name == "poll")
			a.Polled()
		case "arm":
			if a.Sleeps() {
				looks = append(looks, "called")
			}
		case "enter":
			if !a.Enter() {
				looks = append(looks, "refused")
			}
		case "wake":
			if a.Wakes() {
				looks = append(looks, "watch")
			}
		case "leave":
			if a.Leave() {
				looks = append(looks, "called")
			}
		case "look":
			switch pause := a.Look(); pause {
			case 0:
				looks = append(looks, "works")
			case untilCalled:
				looks = append(looks, "away")
			default:
				looks = append(looks, pause.String())
			}
		case "lain", "woken":
			a.Found(found[what], name == "lain")
		default:
			t.Fatalf("no event %q", event)
		}
	}
	return looks
}

func TestAttendance(t *testing.T) {
	for _, c := range []struct{ name, events, looks string }{
		{"nobody polls", "look look", "works works"},
		{"a program polls", "poll look poll poll look", "1ms 1ms"},
		{"it stops without arming its queue", "poll look look", "1ms works"},
		{"it arms its queue", "poll look poll arm look", "1ms called works"},
		{"it arms its queue, and polls once more", "poll look arm last look", "1ms called works"},
		{"another program polls meanwhile", "poll arm look poll look", "called works 1ms"},

		// The acknowledgements and the next request of ib_write_lat: the program polls for its own
		// completions and then reads memory. A message of several packets lay for a millisecond. Now
		// it lies for 20 µs, as long as that happens again within 16 pauses.
		{"packets lie in shared memory", "poll look look lain:memory poll look poll look", "1ms works 20µs 20µs"},
		{"they do not lie again", "poll look look lain:memory" + strings.Repeat(" poll look", shortPauses+1), "1ms works" + strings.Repeat(" 20µs", shortPauses) + " 1ms"},
		// Small messages arrive while the program polls for its own completion: they took 10 µs on
		// average instead of 1.2 when the goroutine took them, since it was woken for each, and held
		// the lock while the program waited for it. Without packets that lie it stays away.
		{"packets do not lie in shared memory", "poll look look lain:nothing poll look poll look", "1ms works 1ms 1ms"},
		{"it was woken for packets, but had not paused", "look woken:memory poll look", "works 1ms"},

		// By UDP, the packet that lies wakes the goroutine if it waits for it, at no cost for the
		// sender: after two pauses it works although programs poll.
		{"a packet lies in a socket", "poll look look lain:udp poll look", "1ms works 1ms"},
		{"again", "poll look look lain:udp poll look look lain:udp poll look woken:udp poll look", "1ms works 1ms works works works"},
		{"a pause without packets between them", "poll look look lain:udp poll look look lain:nothing poll look look lain:udp poll look", "1ms works 1ms works 1ms works 1ms"},
		{
			"the program takes the packets again", "poll look look lain:udp poll look look lain:udp" + strings.Repeat(" woken:nothing poll look", maxInVain),
			"1ms works 1ms works" + strings.Repeat(" works", maxInVain-1) + " 1ms",
		},

		// An engine that sleeps at the shard: the goroutine is neither woken nor called while the
		// engine handles a message and sleeps again.
		{"an engine sleeps", "arm enter look wake poll arm last enter look", "called away watch away"},
		{"it is woken often", "enter wake enter wake enter look wake enter wake enter look", "watch away watch away"},
		{"it works for long", "enter wake look look", "watch away works"},
		{"it has just been woken", "enter wake enter wake look look", "watch away works"},
		{"it polls on", "enter wake poll look poll look poll look look", "watch away 1ms 1ms works"},
		{"it leaves", "enter wake leave look", "watch called works"},
		{"it never was there", "leave look", "works"},
		{"it has been given up, and arms its queue", "enter wake look look poll look arm look", "watch away works 1ms called works"},
		{"two engines", "enter enter look wake poll enter look", "refused away watch away"},
		{"packets lay in a socket, then an engine sleeps", "poll look look lain:udp poll look look lain:udp enter look wake look look", "1ms works 1ms works away watch away works"},
	} {
		var a attendance
		require.Equal(t, c.looks, strings.Join(trace(t, &a, c.events), " "), c.name)
	}
}

// Whatever programs and sleepers do, somebody does the work: when they all stop, the goroutine does
// after three looks at most, and it is called when a program arms its queue and no goroutine sleeps at
// the shard or has just been woken there.
func TestSomebodyAttends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a attendance
		inside, watched := false, false // watched: the goroutine will look
		t.Repeat(map[string]func(*rapid.T){
			"poll": func(*rapid.T) { a.Awake(); a.Polls(true); a.Polled() },
			"arm": func(t *rapid.T) {
				if !a.Sleeps() && !inside && !watched {
					t.Fatal("a program sleeps, and nobody is called")
				}
			},
			"enter": func(t *rapid.T) {
				if a.Enter() == inside {
					t.Fatal("two goroutines sleep at the shard, or none may")
				}
				inside = true
			},
			"wake": func(*rapid.T) {
				if inside {
					watched = a.Wakes() || watched
					if inside = false; !watched {
						t.Fatal("the goroutine will not look")
					}
				}
			},
			"leave": func(*rapid.T) {
				if !inside && a.Leave() {
					watched = true
				}
			},
			"look": func(t *rapid.T) {
				pause := a.Look()
				if watched = a.watched; pause == untilCalled && !inside && !watched {
					t.Fatal("the goroutine will not look again")
				}
				if pause == 0 {
					a.Found(rapid.SampledFrom([]work{0, fromSockets, fromMemory}).Draw(t, "found"), rapid.Bool().Draw(t, "paused"))
				}
			},
			"": func(t *rapid.T) {
				if b := a; !inside && b.Look() != 0 && b.Look() != 0 && b.Look() != 0 {
					t.Fatal("nobody works")
				}
			},
		})
	})
}
