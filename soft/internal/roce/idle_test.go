package roce

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkIdleConnection reports the heap that one end of a connection uses,
// with its share of the completion queue: connected, and with one write posted.
// Depth and list lengths are those of package rdma.
func BenchmarkIdleConnection(b *testing.B) {
	const connections, depth = 1000, 256
	for range b.N {
		x, y := openSide(b, Config{}, 4096), openSide(b, Config{}, 4096)
		before := heap()
		cq, err := x.dev.CreateCQ(verbs.CQInit{Capacity: connections * depth})
		require.NoError(b, err)
		qps := openIdle(x, y, cq, connections, depth)
		connected := heap()
		for _, qp := range qps {
			_, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}}})
			require.NoError(b, err)
		}
		used := heap()
		b.ReportMetric(float64(connected-before)/connections, "B/connection")
		b.ReportMetric(float64(used-before)/connections, "B/posted")
		for _, qp := range qps {
			require.NoError(b, qp.Close())
		}
		require.NoError(b, cq.Close())
	}
}

// BenchmarkBesideIdle measures a write to a sleeping peer, with many idle connections.
func BenchmarkBesideIdle(b *testing.B) {
	for _, n := range []int{10, 5000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			x, y := openPair(b, Config{}, Config{}, 4096)
			cq, err := x.dev.CreateCQ(verbs.CQInit{Capacity: 16})
			require.NoError(b, err)
			qps := openIdle(x, y, cq, n, 16)
			wr := x.write(y, 8)
			for b.Loop() {
				x.post(wr)
				x.wait(1)
			}
			for _, qp := range qps {
				require.NoError(b, qp.Close())
			}
			require.NoError(b, cq.Close())
		})
	}
}

// countedPath counts the calls of send.
type countedPath struct {
	path
	sendCalls *int
}

func (p countedPath) send(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	*p.sendCalls++
	return p.path.send(t, now, a)
}

// Packets, polls and timers do not visit idle queue pairs.
func TestIdleQueuePairsAreLeftAlone(t *testing.T) {
	for name, cfg := range map[string]Config{"UDP": {DisableLocal: true}, "shared memory": {}} {
		t.Run(name, func(t *testing.T) {
			const connections, writes = 500, 200
			x, y := openPair(t, cfg, cfg, 4096)
			d := x.dev
			var idle []*queuePair
			for range connections { // each writes once
				a, b := *x, *y
				for _, s := range []*side{&a, &b} {
					qp, err := s.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 16, MaxSendSGE: 1, MaxRecvWR: 1})
					require.NoError(t, err)
					defer func() { require.NoError(t, qp.Close()) }()
					s.qp = qp
				}
				a.connect(&b)
				b.connect(&a)
				a.post(a.write(y, 8))
				require.Equal(t, verbs.StatusSuccess, a.wait(1)[0].Status)
				idle = append(idle, a.qp.(*queuePair))
			}
			asked := 0
			if cfg.DisableLocal {
				d.mu.Lock()
				for _, q := range idle {
					q.path = countedPath{q.path, &asked}
				}
				d.mu.Unlock()
			}
			// involved is how many of them have a timer, or are to send.
			involved := func() (n int) {
				d.mu.Lock()
				defer d.mu.Unlock()
				for _, q := range idle {
					if q.timer.Queued() || q.ready.Queued() {
						n++
					}
				}
				return n
			}
			// The timers for what they have written go off, once.
			for deadline := time.Now().Add(5 * time.Minute); involved() > 0; {
				require.Less(t, time.Now(), deadline, "%d have a timer", involved())
				time.Sleep(time.Millisecond)
			}
			asked = 0
			for range writes {
				x.post(x.write(y, 8))
				require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
				require.Zero(t, involved())
			}
			require.Zero(t, asked)
		})
	}
}

// openIdle makes n connections from x to y that y does not answer.
func openIdle(x, y *side, cq verbs.CQ, n, depth int) []verbs.QP {
	qps := make([]verbs.QP, 0, n)
	other := *x
	for range n {
		var err error
		other.qp, err = x.dev.DefaultPD().CreateQP(verbs.QPInit{
			SendCQ: cq, RecvCQ: cq, MaxSendWR: depth, MaxSendSGE: 4, MaxRecvWR: 1, MaxInline: 64,
		})
		require.NoError(x.t, err)
		other.connect(y)
		qps = append(qps, other.qp)
	}
	return qps
}

// heap returns the live bytes on the heap.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
