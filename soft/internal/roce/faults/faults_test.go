package faults

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// arrivals passes packets through the faults of a device, on a clock of its own.
type arrivals struct {
	*Injector
	now  time.Duration
	came []byte // the first byte of each packet
}

func (a *arrivals) deliver(d link.Datagram) { a.came = append(a.came, d.Data[0]) }

// send has packets of n bytes come from an address.
func (a *arrivals) send(from string, n int, packets ...byte) {
	for _, p := range packets {
		data := make([]byte, n)
		data[0] = p
		a.Pass(link.Datagram{Src: netip.AddrPortFrom(netip.MustParseAddr(from), 4791), Data: data}, a.now, a.deliver)
		data[0] = 0xff // whose memory is used for the next
	}
}

// at is what has come at a time.
func (a *arrivals) at(now time.Duration) []byte {
	a.now = now
	a.Release(now, a.deliver)
	return a.came
}

func TestDelayAndRate(t *testing.T) {
	a := arrivals{Injector: New(&Settings{
		All: Faults{Delay: 5 * time.Millisecond},
		Peers: map[netip.Addr]Faults{
			netip.MustParseAddr("127.0.0.2"): {Rate: 1e6},
			netip.MustParseAddr("127.0.0.3"): {Seed: 1},
			netip.MustParseAddr("127.0.0.4"): {Loss: 1},
			netip.MustParseAddr("127.0.0.5"): {Delay: time.Millisecond, Rate: 1e6},
		},
	}, 0)}
	a.send("127.0.0.1", 10, 1)
	a.send("127.0.0.2", 1000, 2, 3) // a millisecond each
	a.send("127.0.0.3", 10, 4)      // without faults
	a.send("127.0.0.4", 10, 5)      // cut
	require.Equal(t, []byte{4}, a.came)
	require.Equal(t, time.Millisecond, a.Deadline())
	require.Equal(t, []byte{4}, a.at(time.Millisecond-1))
	require.Equal(t, []byte{4, 2}, a.at(time.Millisecond))
	require.Equal(t, 2*time.Millisecond, a.Deadline())
	require.Equal(t, []byte{4, 2, 3}, a.at(2*time.Millisecond))
	require.Equal(t, 5*time.Millisecond, a.Deadline())
	require.Equal(t, []byte{4, 2, 3}, a.at(5*time.Millisecond-1))
	require.Equal(t, []byte{4, 2, 3, 1}, a.at(5*time.Millisecond))
	require.Zero(t, a.Deadline())

	a.send("127.0.0.5", 500, 6, 7)
	require.Equal(t, 5*time.Millisecond+1500*time.Microsecond, a.Deadline())
	require.Equal(t, []byte{4, 2, 3, 1, 6}, a.at(6500*time.Microsecond))
	require.Equal(t, []byte{4, 2, 3, 1, 6, 7}, a.at(7*time.Millisecond))
}

// Packets of several peers that are due together come in the order of the addresses.
func TestReleaseOrder(t *testing.T) {
	peers := map[netip.Addr]Faults{}
	for i := range byte(50) {
		peers[netip.AddrFrom4([4]byte{127, 0, 0, i})] = Faults{Delay: time.Millisecond}
	}
	a := arrivals{Injector: New(&Settings{Peers: peers}, 0)}
	var want []byte
	for i := range byte(50) {
		a.send(netip.AddrFrom4([4]byte{127, 0, 0, 49 - i}).String(), 10, 49-i)
		want = append(want, i)
	}
	require.Equal(t, want, a.at(time.Millisecond))
	a.Changed(&Settings{}, netip.AddrFrom4([4]byte{127, 0, 0, 7}), 0)
	a.came = nil
	a.send("127.0.0.9", 10, 9)
	a.send("127.0.0.8", 10, 8)
	require.Equal(t, []byte{8, 9}, a.at(2*time.Millisecond))
}

// What does not fit behind a slow link is lost, as at a switch.
func TestBacklogIsBounded(t *testing.T) {
	a := arrivals{Injector: New(&Settings{All: Faults{Rate: 1 << 20}}, 0)}
	for range 100 {
		a.send("127.0.0.1", 64<<10, 1)
	}
	a.at(time.Hour)
	require.Len(t, a.came, maxBacklog/(64<<10)+1)

	a = arrivals{Injector: New(&Settings{All: Faults{Delay: time.Second}}, 0)}
	for range 2000 {
		a.send("127.0.0.1", 64<<10, 1)
	}
	a.at(time.Hour)
	require.Len(t, a.came, maxDelayed/(64<<10))
	require.Zero(t, a.all.bytes)
	a.send("127.0.0.1", 64<<10, 1)
	require.Equal(t, time.Hour+time.Second, a.Deadline())
}

// Faults that are set for one peer, or for the device, are no matter of other packets: those that are
// held stay so, and have the draws that they would have had.
func TestFaultsOfOthersStay(t *testing.T) {
	const x, y, z = "127.0.0.1", "127.0.0.2", "127.0.0.3"
	addr := netip.MustParseAddr
	settings := func() *Settings {
		return &Settings{
			All:   Faults{Loss: 0.3, Reorder: 0.3, Delay: time.Millisecond, Seed: 1},
			Peers: map[netip.Addr]Faults{addr(y): {Loss: 0.3, Reorder: 0.3, Delay: time.Millisecond, Seed: 2}},
		}
	}
	// arrive is what comes of 200 packets from an address, between which something is done.
	arrive := func(from string, between func(*arrivals, *Settings)) []byte {
		s := settings()
		a := arrivals{Injector: New(s, 0)}
		for n := range byte(200) {
			if n == 100 {
				between(&a, s)
			}
			a.send(from, 10, n)
			a.at(a.now + 100*time.Microsecond)
		}
		return a.at(time.Hour)
	}
	nothing := func(*arrivals, *Settings) {}
	set := func(peer string, f Faults) func(*arrivals, *Settings) {
		return func(a *arrivals, s *Settings) {
			of := netip.Addr{}
			if peer == "" {
				s.All = f
			} else {
				of = addr(peer)
				s.Peers[of] = f
				if f == (Faults{}) {
					delete(s.Peers, of)
				}
			}
			require.Empty(t, a.Changed(s, of, 0))
		}
	}
	ofAll, ofOne := arrive(x, nothing), arrive(y, nothing)
	require.NotEqual(t, ofAll, ofOne)
	require.Equal(t, ofAll, arrive(x, set(y, Faults{Loss: 1})))
	require.Equal(t, ofAll, arrive(x, set(y, Faults{})))
	require.Equal(t, ofAll, arrive(x, set(z, Faults{Loss: 1})))
	require.Equal(t, ofOne, arrive(y, set(x, Faults{Loss: 1})))
	require.Equal(t, ofOne, arrive(y, set("", Faults{})))
	require.Equal(t, ofOne, arrive(y, set("", Faults{Loss: 1})))
}

// Of the packets that the faults of the device hold, those of a peer that is given its own arrive.
func TestHeldPacketsOfAPeer(t *testing.T) {
	const x, y = "127.0.0.1", "127.0.0.2"
	s := &Settings{All: Faults{Delay: time.Millisecond, Reorder: 1}, Peers: map[netip.Addr]Faults{}}
	a := arrivals{Injector: New(s, 0)}
	a.send(x, 10, 1)
	a.send(y, 10, 2)
	a.at(time.Millisecond)
	require.Len(t, a.all.held, 2)
	a.send(x, 10, 3)
	a.send(y, 10, 4)
	s.Peers[netip.MustParseAddr(x)] = Faults{Loss: 1}
	var came []byte
	for _, d := range a.Changed(s, netip.MustParseAddr(x), 0) {
		came = append(came, d.Data[0])
	}
	require.Equal(t, []byte{1, 3}, came)
	require.Equal(t, 10, a.all.bytes)
	a.at(time.Hour)
	require.Equal(t, []byte{2, 4}, a.at(2*time.Hour))
	require.Zero(t, a.all.bytes)
}
