package roce

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

// The local kernel reports a peer whose socket is gone. Other connections of the same socket
// are not affected.
func TestPeerUnreachable(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux passes reports on")
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			x, y := openPair(t, v.cfg, v.cfg, 4096)
			gone := v.cfg
			gone.Name = "soft-gone"
			if must(x.dev.GIDs(1))[0].GID.Addr().Is4() {
				gone.Addresses = addresses("127.0.0.98")
			}
			dead := must(Open(gone))
			gids := must(dead.GIDs(1))
			require.NoError(t, dead.Close())

			orphan := *x
			orphan.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 1}))
			orphan.connectTo(gids[0], 77)
			orphan.post(x.write(y, 8))
			limit := time.Now().Add(5 * time.Minute)
			for counter(t, x.dev, "rx_icmp_unreachable") == 0 {
				require.Less(t, time.Now(), limit, "nothing was reported")
				x.post(x.write(y, 8))
				for _, wc := range x.wait(1) {
					if wc.QPN == x.qp.Num() {
						require.Equal(t, verbs.StatusSuccess, wc.Status)
					} else {
						require.Equal(t, verbs.StatusRetryExceeded, wc.Status, "the request to nobody")
					}
				}
			}
			require.Eventually(t, func() bool {
				x.dev.mu.Lock()
				defer x.dev.mu.Unlock()
				return x.dev.main.mu.unreachable.nextProbe != 0
			}, 5*time.Minute, time.Millisecond, "nobody probes the peer")
			assert.Zero(t, counter(t, x.dev, "send_err"))
			assert.Zero(t, counter(t, y.dev, "rx_icmp_unreachable"))
			require.NoError(t, orphan.qp.Close())
		})
	}
}

// Only a few reports are kept, and they are handled at a bounded rate.
func TestUnreachableReportsAreBounded(t *testing.T) {
	x := openSide(t, Config{}, 64)
	d := x.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.endpoints[0]
	flood := make([]link.Refusal, 1000)
	for i := range flood {
		flood[i].Peer = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1+i/2))
	}
	now := time.Hour
	d.main.mu.unreachable.note(e, flood)
	assert.EqualValues(t, len(flood), d.main.mu.unreachable.total)
	assert.Equal(t, maxUnreachable, d.main.mu.unreachable.n)
	assert.Equal(t, uint16(2), d.main.mu.unreachable.reports[1].peer.Port(), "each peer once")
	d.main.probeUnreachable(now)
	assert.Zero(t, d.main.mu.unreachable.n)
	d.main.mu.unreachable.note(e, flood)
	d.main.mu.deadline = 0
	d.main.probeUnreachable(now + unreachableInterval - 1)
	assert.Equal(t, maxUnreachable, d.main.mu.unreachable.n, "they wait")
	assert.Equal(t, now+unreachableInterval, d.main.mu.deadline)
	d.main.probeUnreachable(now + unreachableInterval)
	assert.Zero(t, d.main.mu.unreachable.n)
	d.main.mu.deadline = 0
}
