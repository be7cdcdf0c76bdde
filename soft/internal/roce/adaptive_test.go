package roce

import (
	"fmt"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

// openLossy connects two devices that lose some of the packets that arrive. A time-out of zero
// means adaptive retransmission.
func openLossy(t testing.TB, loss float64, timeout uint8, memory int) (*side, *side) {
	t.Helper()
	cfg := Config{Faults: faults.Faults{Loss: loss, Seed: 1}}
	open := func() *side {
		s := openSide(t, cfg, memory)
		if s.timeout = timeout; timeout != 0 {
			return s
		}
		s.timeout = 31 // more than two hours: it must not matter
		require.NoError(t, s.qp.Close())
		var err error
		s.qp, err = s.dev.DefaultPD().CreateQP(verbs.QPInit{
			SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1024, MaxRecvWR: 1024, MaxSendSGE: 4, MaxRecvSGE: 4,
			AdaptiveRetransmission: true,
		})
		require.NoError(t, err)
		return s
	}
	x, y := open(), open()
	x.connect(y)
	y.connect(x)
	return x, y
}

func TestAdaptiveRetransmission(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpSend, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			const size, count = 20_000, 200
			x, y := openLossy(t, 0.1, 0, size)
			for i := range y.mem {
				x.mem[i], y.mem[i] = byte(i), byte(i>>8)
			}
			for range count {
				if op == verbs.OpSend {
					_, err := y.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{y.sge(0, size)}}})
					require.NoError(t, err)
				}
				x.post(verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
			}
			for _, wc := range x.wait(count) {
				require.Equal(t, verbs.StatusSuccess, wc.Status)
			}
			require.Equal(t, x.mem, y.mem)
			require.NotZero(t, counter(t, x.dev, "completer_retry_err"))
		})
	}
}

// lossyRate returns the requests completed per second, and the number of retransmissions.
func lossyRate(b *testing.B, op verbs.Opcode, size, depth int, loss float64, timeout uint8) (float64, uint64) {
	const warmUp, limit = 100 * time.Millisecond, 500 * time.Millisecond
	rate, again := 0.0, uint64(0)
	b.Run(fmt.Sprintf("%v of %d, loss %v, time-out %d", op, size, loss, timeout), func(b *testing.B) {
		x, y := openLossy(b, loss, timeout, max(size, 4096))
		request := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
		receive := []verbs.RecvWR{{SGL: []verbs.SGE{y.sge(0, size)}}}
		for range 512 {
			_, err := y.qp.PostRecv(receive)
			require.NoError(b, err)
		}
		posted, done, before := 0, 0, 0
		var from time.Time
		for start := time.Now(); ; {
			now := time.Now()
			if from.IsZero() && now.Sub(start) > warmUp {
				from, before = now, done
			}
			if now.Sub(start) > limit {
				rate = float64(done-before) / now.Sub(from).Seconds()
				break
			}
			for range 16 {
				for posted-done < depth {
					x.post(request)
					posted++
				}
				n, err := x.cq.Poll(x.wcs)
				require.NoError(b, err)
				done += n
				for _, wc := range x.wcs[:n] {
					if wc.Status != verbs.StatusSuccess {
						return // the time-out is too short for this machine, or the loss too high
					}
				}
				n, err = y.cq.Poll(y.wcs)
				require.NoError(b, err)
				for range n {
					_, err := y.qp.PostRecv(receive)
					require.NoError(b, err)
				}
			}
		}
		again = counter(b, x.dev, "completer_retry_err")
	})
	return rate, again
}

// BenchmarkLoss prints the requests per second between two devices of one program, by
// time-out, with the retransmissions in brackets. Package transport has the same in virtual
// time.
func BenchmarkLoss(b *testing.B) {
	timeouts := []uint8{8, 9, 10, 12, 14}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\nload\tloss each way\t")
	for _, timeout := range timeouts {
		fmt.Fprintf(table, "%v\t", (4096 * time.Nanosecond << timeout).Round(time.Millisecond))
	}
	fmt.Fprintln(table, "adaptive\tof the best\t")
	for _, l := range []struct {
		name        string
		op          verbs.Opcode
		size, depth int
	}{
		{"write 8 B, one by one", verbs.OpWrite, 8, 1},
		{"write 8 B", verbs.OpWrite, 8, 32},
		{"write 64 KiB", verbs.OpWrite, 64 << 10, 4},
		{"read 64 KiB", verbs.OpRead, 64 << 10, 4},
		{"send 4 KiB", verbs.OpSend, 4 << 10, 8},
	} {
		for _, loss := range []float64{0, 0.01, 0.05, 0.10} {
			fmt.Fprintf(table, "%s\t%.0f %%\t", l.name, 100*loss)
			best := 0.0
			for _, timeout := range timeouts {
				rate, again := lossyRate(b, l.op, l.size, l.depth, loss, timeout)
				best = max(best, rate)
				fmt.Fprintf(table, "%.0f (%d)\t", rate, again)
			}
			rate, again := lossyRate(b, l.op, l.size, l.depth, loss, 0)
			fmt.Fprintf(table, "%.0f (%d)\t%.2f\t\n", rate, again, rate/best)
		}
	}
	table.Flush()
}
