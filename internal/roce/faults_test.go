package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/roce/link"
)

// arrivals passes packets through the faults of a device, on a clock of its own.
type arrivals struct {
	*faultInjector
	now  time.Duration
	came []byte // the first byte of each packet
}

func (a *arrivals) deliver(d link.Datagram) { a.came = append(a.came, d.Data[0]) }

// send has packets of n bytes come from an address.
func (a *arrivals) send(from string, n int, packets ...byte) {
	for _, p := range packets {
		data := make([]byte, n)
		data[0] = p
		a.pass(link.Datagram{Src: netip.AddrPortFrom(netip.MustParseAddr(from), 4791), Data: data}, a.now, a.deliver)
		data[0] = 0xff // whose memory is used for the next
	}
}

// at is what has come at a time.
func (a *arrivals) at(now time.Duration) []byte {
	a.now = now
	a.release(now, a.deliver)
	return a.came
}

func TestDelayAndRate(t *testing.T) {
	a := arrivals{faultInjector: newFaultInjector(&faultSettings{
		all: Faults{Delay: 5 * time.Millisecond},
		peers: map[netip.Addr]Faults{
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
	require.Equal(t, time.Millisecond, a.deadline())
	require.Equal(t, []byte{4}, a.at(time.Millisecond-1))
	require.Equal(t, []byte{4, 2}, a.at(time.Millisecond))
	require.Equal(t, 2*time.Millisecond, a.deadline())
	require.Equal(t, []byte{4, 2, 3}, a.at(2*time.Millisecond))
	require.Equal(t, 5*time.Millisecond, a.deadline())
	require.Equal(t, []byte{4, 2, 3}, a.at(5*time.Millisecond-1))
	require.Equal(t, []byte{4, 2, 3, 1}, a.at(5*time.Millisecond))
	require.Zero(t, a.deadline())

	a.send("127.0.0.5", 500, 6, 7)
	require.Equal(t, 5*time.Millisecond+1500*time.Microsecond, a.deadline())
	require.Equal(t, []byte{4, 2, 3, 1, 6}, a.at(6500*time.Microsecond))
	require.Equal(t, []byte{4, 2, 3, 1, 6, 7}, a.at(7*time.Millisecond))
}

// What does not fit behind a slow link is lost, as at a switch.
func TestBacklogIsBounded(t *testing.T) {
	a := arrivals{faultInjector: newFaultInjector(&faultSettings{all: Faults{Rate: 1 << 20}}, 0)}
	for range 100 {
		a.send("127.0.0.1", 64<<10, 1)
	}
	a.at(time.Hour)
	require.Len(t, a.came, maxBacklog/(64<<10)+1)

	a = arrivals{faultInjector: newFaultInjector(&faultSettings{all: Faults{Delay: time.Second}}, 0)}
	for range 2000 {
		a.send("127.0.0.1", 64<<10, 1)
	}
	a.at(time.Hour)
	require.Len(t, a.came, maxDelayed/(64<<10))
	require.Zero(t, a.all.bytes)
	a.send("127.0.0.1", 64<<10, 1)
	require.Equal(t, time.Hour+time.Second, a.deadline())
}
