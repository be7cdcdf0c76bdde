package srd

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The window counts bytes: as many small packets are in flight as a peer can tell apart, and
// no more large ones than fit into its buffer. Losses make it smaller, down to a minimum.
func TestWindow(t *testing.T) {
	for _, mtu := range []verbs.MTU{256, 1024, 4096} {
		for _, size := range []int{0, 8, int(mtu)} {
			if testing.Short() && (mtu == 1024 || size == 8) {
				continue // what is between the extremes
			}
			for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
				w := newNetwork(t, 2, faults{})
				x, y := w.boot(at(1), 2, mtu), w.boot(at(2), 4, mtu)
				a, b := x.newEnd(endOptions{depth: 2000}), y.newEnd(endOptions{})
				x.knows(y)
				y.knows(x)
				src, dst := x.arena(int(mtu), everyAccess), y.arena(int(mtu), everyAccess)
				wr := address(verbs.SendWR{Op: op, RemoteAddr: dst.Base, RKey: dst.Key, SGL: []verbs.SGE{src.sge(0, size)}}, a.to(y), b)
				wrs := slices.Repeat([]verbs.SendWR{wr}, 2000)
				post := func() { a.post(wrs...) }
				post()
				a.completed(2000)
				c := x.t.contexts[Address{0, y.addr}]
				require.NotNil(t, c)
				assert.Zero(t, c.underWay)
				assert.Equal(t, x.t.limits.most, c.window, "it has grown")
				w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
					if from == y.addr {
						return nil
					}
					return p
				}
				post()
				w.Pass(500 * time.Microsecond)
				want := min(maxWindow/2, 1<<20/max(size, 1))
				assert.InDelta(t, want, c.inFlight, 8, "%v of %d bytes, MTU %d", op, size, mtu)
				assert.Less(t, c.underWay, c.window+wire.MaxSegments*int(mtu))
				w.tap = nil
				a.completed(2000)
				before := c.window
				w.Config.Loss = 0.2
				post()
				a.completed(2000)
				assert.Less(t, c.window, before)
				assert.GreaterOrEqual(t, c.window, x.t.limits.least)
				assert.Zero(t, c.underWay)
			}
		}
	}
}
