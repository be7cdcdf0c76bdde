package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// roundTripOf posts one write and has it acknowledged after d.
func (r *rig) roundTripOf(d time.Duration) {
	r.t.Helper()
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	require.Len(r.t, sent, 1)
	r.now += d
	r.server.take(r.now, sent...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusSuccess)
	require.Zero(r.t, r.client.qp.Deadline())
}

// timeoutOfNext is how long the queue pair would wait for the response to another
// write, which is then acknowledged at once.
func (r *rig) timeoutOfNext() time.Duration {
	r.t.Helper()
	r.client.post(r.wr(2, verbs.OpWrite, 8))
	require.NotEmpty(r.t, r.client.transmit(r.now))
	return r.client.qp.Deadline() - r.now
}

// The numbers of RFC 6298 2.2 and 2.3, with G of 100 µs.
func TestRoundTripIsMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, timeout: 1, retries: 255})
	for i, step := range []struct{ sample, want time.Duration }{
		{8 * time.Millisecond, 24 * time.Millisecond},       // SRTT 8 ms, RTTVAR 4 ms
		{8 * time.Millisecond, 20 * time.Millisecond},       // 8, 3
		{16 * time.Millisecond, 26 * time.Millisecond},      // 9, 4.25
		{time.Millisecond, 28750 * time.Microsecond},        // 8, 5.1875
		{8 * time.Millisecond, 23562500 * time.Nanosecond},  // 8, 3.890625
		{16 * time.Millisecond, 28671872 * time.Nanosecond}, // 9, 4.91796875, rounded down
	} {
		r.roundTripOf(step.sample)
		require.Equal(t, step.want, r.client.qp.timeout(), "sample %d", i+1)
	}
	for range 100 {
		r.roundTripOf(40 * time.Microsecond)
	}
	require.InDelta(t, 140*time.Microsecond, r.client.qp.timeout(), float64(time.Microsecond), "G is the least of the variation's share")
	require.Equal(t, r.client.qp.timeout(), r.timeoutOfNext())
}

func TestTimeoutBeforeTheFirstSample(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	for i := range 8 {
		want := min(initialTimeout<<max(i-1, 0), maxBackoff)
		require.Len(t, r.client.transmit(r.now), 1)
		require.Equal(t, r.now+want, r.client.qp.Deadline())
		r.client.qp.Timeout(r.now + want - 1)
		require.Empty(t, r.client.transmit(r.now+want-1), "a nanosecond early")
		r.expire()
	}
}

// A packet that was sent again gives no sample, and the time-out doubles until there
// is one.
func TestKarn(t *testing.T) {
	t.Parallel()
	for _, acked := range []time.Duration{0, 10 * time.Microsecond, 2 * time.Millisecond} {
		r := newRig(t, options{adaptive: true})
		r.roundTripOf(time.Millisecond)
		want := 3 * time.Millisecond
		for i := range 4 {
			r.client.post(r.wr(1, verbs.OpWrite, 8))
			require.Len(t, r.client.transmit(r.now), 1)
			require.Equal(t, r.now+want, r.client.qp.Deadline(), "acknowledged %d times", i)
			r.expire()
			again := r.client.transmit(r.now)
			require.Len(t, again, 1)
			require.True(t, again[0].AckReq)
			r.now += acked
			r.server.take(r.now, again...)
			r.client.take(r.now, r.server.transmit(r.now)...)
			r.requireSent(1, verbs.StatusSuccess)
			require.Equal(t, time.Millisecond, r.client.qp.Smoothed, "no sample after %v", acked)
			if i > 0 {
				want *= 2
			}
		}
		r.roundTripOf(time.Millisecond)
		require.Equal(t, 2500*time.Microsecond, r.client.qp.timeout(), "a sample ends the doubling")
	}
}

// The peer did not accept a packet that it reports missing, so the retransmission can be
// timed.
func TestSampleAfterReportedGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	r.now += time.Millisecond
	r.server.take(r.now, sent[1])
	r.client.take(r.now, r.server.transmit(r.now)...)
	require.Equal(t, time.Millisecond, r.client.qp.Smoothed, "the NAK is a response too")

	sent = r.client.transmit(r.now)
	require.Len(t, sent, 2)
	r.now += 9 * time.Millisecond / 4
	r.server.take(r.now, sent...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
	require.Equal(t, time.Millisecond+5*time.Millisecond/4/8, r.client.qp.Smoothed)
}

// A round trip that ends after the timer was due is no sample: this end was not running.
func TestOwnPauseIsNoSample(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(time.Millisecond)
	r.roundTripOf(10 * time.Second)
	require.Equal(t, time.Millisecond, r.client.qp.Smoothed)
	require.Zero(t, r.client.qp.expired)
}

// The time-out adapts to a path that becomes slower than it, by any factor.
func TestTimeoutFollowsThePath(t *testing.T) {
	t.Parallel()
	for _, oneWay := range []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 120 * time.Millisecond, 400 * time.Millisecond} {
		for _, warm := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, warm %v", oneWay, warm), func(t *testing.T) {
				t.Parallel()
				net, a, _, wr := newTwoRigs(t, options{adaptive: true}, 8)
				write := func() time.Duration {
					from := net.Now
					a.post(wr)
					a.settle()
					net.run(time.Minute)
					require.Equal(t, verbs.StatusSuccess, a.send.take()[0].Status)
					return net.Now - from
				}
				if warm {
					net.Config.Latency = 5 * time.Microsecond
					for range 20 {
						write()
					}
				}
				net.Config.Latency = oneWay
				for range 40 {
					write()
				}
				require.InDelta(t, 2*oneWay, a.qp.Smoothed, float64(oneWay)/10)
				before := a.counters.CompleterRetries
				for range 10 {
					write()
				}
				require.Equal(t, before, a.counters.CompleterRetries, "nothing is sent twice any more")
			})
		}
	}
}

// newTwoRigs is a client and a server on a network without faults, and a write of n
// bytes.
func newTwoRigs(t tb, o options, n int) (*network, *node, *node, verbs.SendWR) {
	o = o.defaults()
	net := newNetwork(t, 1, faults{})
	a, b := net.attach(newEnd(t, clientQPN, NewMemory(), o)), net.attach(newEnd(t, serverQPN, NewMemory(), o))
	net.join(a, b)
	a.ready(o.attr(serverQPN, 0, 0))
	b.ready(o.attr(clientQPN, 0, 0))
	local := newArena(t, a.memory, localKey, localBase, n, everyAccess)
	newArena(t, b.memory, remoteKey, remoteBase, n, everyAccess)
	return net, a, b, verbs.SendWR{
		Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{local.sge(0, n)}, RemoteAddr: remoteBase, RKey: remoteKey,
	}
}

// The first retransmissions are probes of one packet; only then is everything sent again.
func TestProbesBeforeAllIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, psn: 0xfffffe})
	r.roundTripOf(100 * time.Microsecond) // 0xfffffe
	r.client.post(r.wr(2, verbs.OpWrite, 600), r.wr(3, verbs.OpWrite, 8))
	require.Equal(t, []uint32{0xffffff, 0, 1, 2}, psns(r.client.transmit(r.now)))
	timeout := 300 * time.Microsecond
	for _, want := range [][]uint32{
		{2}, {0xffffff}, {2}, {0xffffff}, {2}, {0xffffff, 0, 1, 2}, {0xffffff, 0, 1, 2},
	} {
		require.Equal(t, r.now+timeout, r.client.qp.Deadline())
		r.expire()
		sent := r.client.transmit(r.now)
		require.Equal(t, want, psns(sent))
		require.True(t, sent[len(sent)-1].AckReq)
		if r.client.counters.CompleterRetries > 1 {
			timeout *= 2
		}
	}
	require.Equal(t, uint64(7), r.client.counters.CompleterRetries)
}

// While packets leave, the probe waits for the response to the last of them, but not forever.
func TestProbeWaitsForTheLastPacket(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, depth: 256})
	r.roundTripOf(100 * time.Microsecond)
	start := r.now
	id := uint64(2)
	for r.client.counters.CompleterRetries == 0 {
		r.client.post(r.wr(id, verbs.OpWrite, 8))
		require.NotEmpty(t, r.client.transmit(r.now))
		id++
		next := r.now + 200*time.Microsecond
		for d := r.client.qp.Deadline(); d <= next && r.client.counters.CompleterRetries == 0; d = r.client.qp.Deadline() {
			r.now = d
			r.client.qp.Timeout(r.now)
		}
		r.now = next
	}
	require.GreaterOrEqual(t, r.now-start, minTimeout)
	require.Less(t, r.now-start, 2*minTimeout)
}

// A loss that no later packet reveals: of the last request, of the last response, or of the
// NAK for a gap. Some responders send that NAK only once.
func TestTailLoss(t *testing.T) {
	t.Parallel()
	for _, op := range everyOperation {
		for _, lost := range []string{"request", "response", "NAK"} {
			for _, silent := range []bool{false, true} {
				if lost == "NAK" && op > verbs.OpWriteImm {
					continue
				}
				t.Run(fmt.Sprintf("%v, %s, peer repeats no NAK: %v", op, lost, silent), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, options{adaptive: true})
					r.roundTripOf(100 * time.Microsecond)
					n := 8
					for range 4 {
						r.server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{r.remote.sge(1024, n)}})
					}
					for id := range uint64(4) {
						r.client.post(r.wr(id, op, n))
					}
					sent := r.client.transmit(r.now)
					require.Len(t, sent, 4)
					switch lost {
					case "request":
						r.server.take(r.now, sent[:3]...)
						r.client.take(r.now, r.server.transmit(r.now)...)
					case "response":
						r.server.take(r.now, sent...)
						back := r.server.transmit(r.now)
						r.client.take(r.now, back[:len(back)-1]...)
					case "NAK":
						r.server.take(r.now, sent[1:]...)
						require.Len(t, r.server.transmit(r.now), 1)
					}
					start := r.now
					for len(r.client.send.list) < 4 {
						r.expire()
						if silent {
							r.server.qp.lastOutOfOrder = r.server.qp.expected
						}
						r.exchange()
					}
					require.Equal(t, []uint64{0, 1, 2, 3}, ids(r.client.send.take()))
					require.Less(t, r.now-start, minTimeout, "probes were enough")
					require.Equal(t, verbs.QPReadyToSend, r.client.qp.State())
				})
			}
		}
	}
}

// A probe reads again from what is missing, within one request.
func TestProbeOfRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, psn: 0xfffff0})
	r.roundTripOf(100 * time.Microsecond) // 0xfffff0
	n := 72 * 256                         // two requests, of 64 and 8 responses
	r.client.post(r.wr(2, verbs.OpRead, n))
	sent := r.client.transmit(r.now)
	require.Equal(t, []uint32{0xfffff1, 0x31}, psns(sent))
	r.server.take(r.now, sent...)
	back := r.server.transmit(r.now)
	require.Len(t, back, 72)
	r.client.take(r.now, back[:67]...)
	r.expire()
	again := r.client.transmit(r.now)
	require.Equal(t, []uint32{0x34}, psns(again), "the response after the 67th")
	require.Equal(t, wire.RETH{VA: remoteBase + 67*256, RKey: remoteKey, Length: 5 * 256}, again[0].RETH)
	r.server.take(r.now, again...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(2, verbs.StatusSuccess)
	require.Equal(t, r.remote.Mem[:n], r.local.Mem[:n])
	require.Zero(t, r.client.qp.readsSent)
}

// A second loss of the same response is detected by the response after it.
func TestResponseLostTwice(t *testing.T) {
	t.Parallel()
	for _, adaptive := range []bool{false, true} {
		r := newRig(t, options{adaptive: adaptive})
		r.client.post(r.wr(1, verbs.OpRead, 1024))
		start := r.now
		for range 5 {
			r.server.take(r.now, r.client.transmit(r.now)...)
			back := r.server.transmit(r.now)
			require.Len(t, back, 4)
			r.client.take(r.now, back[1:]...)
		}
		require.Equal(t, uint64(5), r.client.counters.CompleterRetries)
		r.exchange()
		r.requireSent(1, verbs.StatusSuccess)
		require.Equal(t, start, r.now, "no time-out was needed")
	}
}

// A responder whose NAK was lost sends it again for a probe.
func TestNakIsRepeatedForTheLastPacket(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 1000))
	sent := r.client.transmit(r.now)
	require.Len(t, sent, 5)
	r.server.take(r.now, sent[1:]...)
	require.Len(t, r.server.transmit(r.now), 1)
	for range 3 {
		r.server.take(r.now, sent[3]) // asks for nothing
		require.Empty(t, r.server.transmit(r.now))
		r.server.take(r.now, sent[4])
		require.Empty(t, r.server.transmit(r.now), "not come again in a row")
		r.server.take(r.now, sent[4])
		nak := r.server.transmit(r.now)
		require.Len(t, nak, 1)
		require.Equal(t, wire.Nak(wire.NakSequence), nak[0].AETH.Syndrome)
		require.Equal(t, sent[0].PSN, nak[0].PSN)
	}
}

// An acknowledgement of the oldest packet alone, sent as a probe, shows that the peer
// has dropped the others, though it reports nothing.
func TestProbeOfOldestShowsTheRestDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(100 * time.Microsecond) // 0
	for id := range uint64(4) {
		r.client.post(r.wr(id, verbs.OpWrite, 8))
	}
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent[1:]...)
	require.Len(t, r.server.transmit(r.now), 1, "a NAK, which is lost")
	r.expire()
	require.Equal(t, []uint32{4}, psns(r.client.transmit(r.now)), "nothing comes back")
	r.expire()
	probe := r.client.transmit(r.now)
	require.Equal(t, []uint32{1}, psns(probe))
	r.server.take(r.now, probe...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(0, verbs.StatusSuccess)
	require.Equal(t, []uint32{2, 3, 4}, psns(r.client.transmit(r.now)), "at once")
}

// Where the peer has reported the oldest packet missing, the oldest is probed first:
// not every peer reports it again.
func TestProbeOfMissingPacket(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(100 * time.Microsecond) // 0
	for id := range uint64(4) {
		r.client.post(r.wr(id, verbs.OpWrite, 8))
	}
	r.client.transmit(r.now)
	r.client.take(r.now, sequenceNak(1))
	require.Equal(t, []uint32{1, 2, 3, 4}, psns(r.client.transmit(r.now)))
	r.expire()
	require.Equal(t, []uint32{1}, psns(r.client.transmit(r.now)))
	r.client.take(r.now, ackOf(2))
	require.Empty(t, r.client.transmit(r.now))
	r.expire()
	require.Equal(t, []uint32{4}, psns(r.client.transmit(r.now)), "the oldest is another now")
}
