package lane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// The device does not count, so that the lane does: what has completed, and no request that stays at
// this end.
func TestLaneCounts(t *testing.T) {
	f := newFixture(t, 10)
	for i, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRead, verbs.OpFetchAdd, verbs.OpBindMW, verbs.OpLocalInvalidate} {
		j := f.push(i)
		j.WR.Op = op
		j.WR.SGL = []verbs.SGE{{Length: 8}}
	}
	f.group.Post()
	f.complete(5, verbs.StatusSuccess)
	for f.poll(t) > 0 {
	}
	require.Len(t, f.ends, 5)
	c := f.lane.Counters()
	require.Equal(t, verbs.QPCounters{SentMessages: 3, SentBytes: 8, ReceivedBytes: 16}, c)
}
