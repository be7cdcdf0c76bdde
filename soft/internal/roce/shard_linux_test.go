package roce

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// TestShardsShareMemory: each pair of shards of two devices, or of one, has a channel of its own.
func TestShardsShareMemory(t *testing.T) {
	a, as := openPollers(t, Config{}, 2, 1<<20)
	b, bs := openPollers(t, Config{}, 2, 1<<20)
	if hidden(&a.dev.main.mu.local, "listeners").IsNil() {
		t.Skip("devices of this machine cannot share memory")
	}
	shared := func(x *side) {
		x.until("shared memory", func() bool { return x.pathKind() == verbs.PathSharedMemory })
	}
	x, y := as[1], bs[0]
	x.connect(y)
	y.connect(x)
	shared(x)
	shared(y)
	for range 20 {
		x.everyOperation(y, 300_000)
		y.everyOperation(x, 300_000)
	}
	for _, d := range []*Device{a.dev, b.dev} {
		assert.EqualValues(t, 1, counter(t, d, "local_peers"))
		assert.NotZero(t, counter(t, d, "local_rcvd_pkts"))
		assert.Zero(t, counter(t, d, "rx_passed_on"))
	}

	sibling, w := *bs[0], bs[1]
	v := &sibling
	v.qp = must(b.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: v.cq, RecvCQ: v.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}))
	defer func() { require.NoError(t, v.qp.Close()) }()
	v.connect(w)
	w.connect(v)
	require.NotEqual(t, v.shard(), w.shard(), "two queue pairs of one device")
	shared(v)
	shared(w)
	v.everyOperation(w, 100_000)
}
