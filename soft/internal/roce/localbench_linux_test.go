package roce

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkPollBesideIdleChannels measures an empty poll with idle channels to other devices.
func BenchmarkPollBesideIdleChannels(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			x := openSide(b, Config{}, 4096)
			for range n {
				y, one := openSide(b, Config{}, 64), *x
				one.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 1, MaxRecvWR: 1}))
				one.connect(y)
				y.connect(&one)
				awaitSharedMemory(&one, y)
				b.Cleanup(func() { require.NoError(b, one.qp.Close()) })
			}
			for range 1 << 13 { // until none is busy any more
				_, _ = x.cq.Poll(x.wcs)
			}
			for b.Loop() {
				_, _ = x.cq.Poll(x.wcs)
			}
		})
	}
}
