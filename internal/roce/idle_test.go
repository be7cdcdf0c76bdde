package roce

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkIdleConnection reports the heap that one end of a connection takes,
// with its share of the completion queue: connected, and with one write posted.
// Depth and list lengths are those of package rdma.
func BenchmarkIdleConnection(b *testing.B) {
	const connections, depth = 1000, 128
	for range b.N {
		x, y := openSide(b, Config{}, 4096), openSide(b, Config{}, 4096)
		first := x.qp
		qps := make([]verbs.QP, 0, connections)
		before := heap()
		cq, err := x.dev.CreateCQ(verbs.CQInit{Capacity: connections * depth})
		require.NoError(b, err)
		for range connections {
			x.qp, err = x.dev.DefaultPD().CreateQP(verbs.QPInit{
				SendCQ: cq, RecvCQ: cq, MaxSendWR: depth, MaxSendSGE: 4, MaxRecvWR: 1, MaxInline: 64,
			})
			require.NoError(b, err)
			x.connect(y)
			qps = append(qps, x.qp)
		}
		connected := heap()
		for _, qp := range qps {
			_, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}}})
			require.NoError(b, err)
		}
		used := heap()
		b.ReportMetric(float64(connected-before)/connections, "B/connection")
		b.ReportMetric(float64(used-before)/connections, "B/posted")
		x.qp = first
		for _, qp := range qps {
			require.NoError(b, qp.Close())
		}
		require.NoError(b, cq.Close())
	}
}

// heap is what lives on it, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
