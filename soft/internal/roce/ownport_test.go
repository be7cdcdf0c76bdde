package roce

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A device whose port is not 4791 reaches its own queue pairs at its own GID without naming a port.
func TestOwnGIDIsOwnPort(t *testing.T) {
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		for _, noMemory := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, by UDP %v", kind, noMemory), func(t *testing.T) {
				openSide(t, Config{}, 4096) // has port 4791, unless another process has
				x := openSideWith(t, Config{DisableLocal: noMemory}, 4096, verbs.QPInit{Type: kind})
				y := *x
				y.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{Type: kind, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}))
				defer func() { require.NoError(t, y.qp.Close()) }()
				gid := must(x.dev.GIDs(1))[0]
				require.NotEqualValues(t, 4791, x.dev.endpoints[0].socket.Addr().Port())
				gid.UDPPort = 0
				for _, ends := range [][2]*side{{x, &y}, {&y, x}} {
					attr := verbs.QPAttr{DestQPN: ends[1].qp.Num(), Address: verbs.AddressAttr{DGID: gid.GID, Port: 1}}
					p, _, err := ends[0].qp.(*queuePair).choosePath(&attr)
					require.NoError(t, err)
					require.Equal(t, x.dev.endpoints[0].socket.Addr(), networkPath(p).peer)
				}
				attr := verbs.QPAttr{DestQPN: 2, Address: verbs.AddressAttr{DGID: gid.GID, Port: 1}}
				p, _, err := x.qp.(*queuePair).choosePath(&attr)
				require.NoError(t, err)
				require.EqualValues(t, 4791, networkPath(p).peer.Port(), "of another process")
			})
		}
	}
}
