package transport

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// lossLoad is requests of one kind.
type lossLoad struct {
	name  string
	op    verbs.Opcode
	size  int
	depth int // requests under way at a time
	count int
}

var lossLoads = []lossLoad{
	{"write 8 B, one by one", verbs.OpWrite, 8, 1, 1000},
	{"write 8 B", verbs.OpWrite, 8, 32, 4000},
	{"write 64 KiB", verbs.OpWrite, 64 << 10, 4, 300},
	{"read 64 KiB", verbs.OpRead, 64 << 10, 4, 300},
	{"send 4 KiB", verbs.OpSend, 4 << 10, 8, 2000},
}

// lossPath is what a load has to cross.
type lossPath struct {
	latency time.Duration // one way
	loss    float64       // each way
	// nakOnce has a responder that reports a gap once and not again, whatever comes,
	// as the kernel's rxe does.
	nakOnce bool
}

// A queue pair sends a packet a microsecond, much as the device does.
const lossGap = burst * time.Microsecond

// rate is how many requests a second of virtual time the load reaches; zero says that
// one failed.
func (l lossLoad) rate(t tb, p lossPath, o options, seed uint64) float64 {
	o.mtu, o.depth, o.recvDepth, o.initReads, o.retries = 4096, 64, 64, 16, 7
	o = o.defaults()
	net := newNetwork(t, seed, faults{Loss: p.loss})
	net.Config.Latency, net.gap = p.latency, lossGap
	a, b := net.attach(newEnd(t, clientQPN, NewMemory(), o)), net.attach(newEnd(t, serverQPN, NewMemory(), o))
	net.join(a, b)
	a.ready(o.attr(serverQPN, 0, 0))
	b.ready(o.attr(clientQPN, 0, 0))
	local := newArena(t, a.memory, localKey, localBase, l.size, everyAccess)
	remote := newArena(t, b.memory, remoteKey, remoteBase, l.size, everyAccess)
	pattern(local.Mem, 1)
	pattern(remote.Mem, 2)
	receive := verbs.RecvWR{SGL: []verbs.SGE{remote.sge(0, l.size)}}
	for range o.recvDepth {
		b.postRecv(receive)
	}
	b.wake = func() {
		if p.nakOnce {
			b.qp.nextSeen, b.qp.lastOutOfOrder = false, b.qp.expected
		}
		for range b.recv.take() {
			b.postRecv(receive)
		}
	}
	f := newTraffic(a, verbs.SendWR{
		Op: l.op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{local.sge(0, l.size)}, RemoteAddr: remoteBase, RKey: remoteKey,
	}, l.count)
	f.depth = l.depth
	from := net.Now
	a.settle()
	net.run(time.Hour)
	if len(f.failed) > 0 {
		return 0
	}
	require.Equal(t, l.count, f.succeeded)
	require.True(t, bytes.Equal(local.Mem, remote.Mem))
	return float64(l.count) / (f.last - from).Seconds()
}

// manualTimeouts are the time-outs to compare with: 1 ms to 67 ms.
var manualTimeouts = []uint8{8, 9, 10, 11, 12, 13, 14}

// Under loss, a queue pair with an adaptive time-out has at least half the throughput of one
// with the best fixed time-out, in virtual time. Time-outs below the round trip are left out:
// they send everything several times, which is free only in this test.
func TestLossNeedsNoTuning(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{8 * time.Microsecond, 100 * time.Microsecond, 2 * time.Millisecond} {
		for _, loss := range []float64{0.05, 0.10} {
			for _, nakOnce := range []bool{false, true} {
				for _, l := range lossLoads {
					p := lossPath{latency: latency, loss: loss, nakOnce: nakOnce}
					t.Run(fmt.Sprintf("%s, %v away, loss %v, NAK once %v", l.name, latency, loss, nakOnce), func(t *testing.T) {
						t.Parallel()
						l.count /= 4
						best := 0.0
						for _, timeout := range manualTimeouts[:4] { // longer ones are worse
							if 4096*time.Nanosecond<<timeout > 2*latency {
								best = max(best, l.rate(t, p, options{timeout: timeout}, 1))
							}
						}
						rate := l.rate(t, p, options{adaptive: true}, 1)
						t.Logf("%.2f of %v requests a second", rate/best, best)
						require.GreaterOrEqual(t, rate, best/2)
					})
				}
			}
		}
	}
}

// BenchmarkLoss prints the requests per second of virtual time for each time-out, and the
// ratio of the adaptive time-out to the best fixed one.
func BenchmarkLoss(b *testing.B) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\nload\tloss each way\t")
	for _, timeout := range manualTimeouts {
		fmt.Fprintf(table, "%v\t", (4096 * time.Nanosecond << timeout).Round(time.Millisecond))
	}
	fmt.Fprintln(table, "adaptive\tof the best\t")
	for _, l := range lossLoads {
		for _, loss := range []float64{0, 0.01, 0.05, 0.10} {
			p := lossPath{latency: 8 * time.Microsecond, loss: loss}
			fmt.Fprintf(table, "%s\t%.0f %%\t", l.name, 100*loss)
			best := 0.0
			for _, timeout := range manualTimeouts {
				rate := l.rate(b, p, options{timeout: timeout}, 1)
				best = max(best, rate)
				fmt.Fprintf(table, "%.0f\t", rate)
			}
			rate := l.rate(b, p, options{adaptive: true}, 1)
			fmt.Fprintf(table, "%.0f\t%.2f\t\n", rate, rate/best)
		}
	}
	table.Flush()
}

// Without loss, nothing is sent twice and nothing takes longer, near or far.
func TestNoLossNoRepetition(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{8 * time.Microsecond, 2 * time.Millisecond} {
		for _, l := range lossLoads {
			t.Run(fmt.Sprintf("%s, %v away", l.name, latency), func(t *testing.T) {
				t.Parallel()
				l.count /= 4
				p := lossPath{latency: latency}
				require.Equal(t, l.rate(t, p, options{timeout: 14}, 1), l.rate(t, p, options{adaptive: true}, 1))
			})
		}
	}
}
