package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

var everyOperation = []verbs.Opcode{verbs.OpWrite, verbs.OpSend, verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite}

// silence lets the client's timers run while nothing comes back, and returns the
// sequence numbers that were sent.
func (r *rig) silence(late time.Duration) (sent []uint32) {
	r.t.Helper()
	for r.client.qp.State() == verbs.QPReadyToSend {
		sent = append(sent, psns(r.client.transmit(r.now))...)
		r.now = r.client.qp.Deadline() + late
		r.client.qp.Timeout(r.now)
		require.Less(r.t, len(sent), 1000)
	}
	return sent
}

func TestSilentPeer(t *testing.T) {
	t.Parallel()
	for _, op := range everyOperation {
		for _, measured := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, measured %v", op, measured), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, options{adaptive: true, retries: 255, timeout: 1})
				if measured {
					r.roundTripOf(50 * time.Microsecond)
				}
				start := r.now
				r.client.post(r.wr(1, op, 8), r.wr(2, op, 8))
				r.silence(0)
				list := r.client.send.take()
				require.Equal(t, []uint64{1, 2}, ids(list))
				require.Equal(t, verbs.StatusRetryExceeded, list[0].Status)
				require.Equal(t, verbs.StatusFlushed, list[1].Status)
				require.GreaterOrEqual(t, r.now-start, defaultSilenceTimeout)
				require.Less(t, r.now-start, defaultSilenceTimeout+2*maxBackoff)
				require.Equal(t, uint64(1), r.client.counters.RetryExceeded)
				require.Zero(t, r.client.qp.Deadline())
			})
		}
	}
}

// A peer may be silent for as long as the queue pair was told, and may respond to others meanwhile.
func TestSilenceTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, silence: 2 * time.Minute})
	r.roundTripOf(50 * time.Microsecond)
	start := r.now
	r.client.post(r.wr(1, verbs.OpSend, 8))
	for r.client.qp.State() == verbs.QPReadyToSend {
		r.client.transmit(r.now)
		r.now = r.client.qp.Deadline()
		r.client.qp.Timeout(r.now)
	}
	r.requireSent(1, verbs.StatusRetryExceeded)
	require.GreaterOrEqual(t, r.now-start, 2*time.Minute)
	require.Less(t, r.now-start, 2*time.Minute+2*maxBackoff)
}

// On a path with a delay of seconds the oldest packet is still sent often enough.
func TestSilentPeerFarAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.client.qp.sample(700 * time.Millisecond)
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	sent := r.silence(0)
	r.requireSent(1, verbs.StatusRetryExceeded)
	require.GreaterOrEqual(t, len(sent), 1+minRepetitions)
}

// The program's own time-out and retries say when to give up, not when to repeat.
func TestSilenceByAttributes(t *testing.T) {
	t.Parallel()
	for _, o := range []options{{timeout: 18, retries: 7}, {timeout: 14, retries: 7}, {timeout: 20, retries: 1}} {
		o.asAdapter = true
		r := newRig(t, o)
		r.roundTripOf(50 * time.Microsecond)
		var want time.Duration // the sum of the fixed time-outs
		for i := range int(o.retries) + 1 {
			want += 4096 * time.Nanosecond << o.timeout << min(i, 2)
		}
		start := r.now
		r.client.post(r.wr(1, verbs.OpWrite, 8))
		sent := psns(r.client.transmit(r.now))
		r.hint() // adapters do not learn that the peer's socket is gone
		sent = append(sent, r.silence(0)...)
		r.requireSent(1, verbs.StatusRetryExceeded)
		require.Greater(t, len(sent), int(o.retries)+1)
		require.GreaterOrEqual(t, r.now-start, want)
		require.Less(t, r.now-start, want+2*maxBackoff)
	}
}

// Without one of the two, the queue pair does not adapt: it repeats nothing.
func TestNoSilenceByAttributes(t *testing.T) {
	t.Parallel()
	for _, o := range []options{{timeout: 255}, {timeout: 18, retries: 255}} {
		o.asAdapter = true
		r := newRig(t, o)
		r.client.post(r.wr(1, verbs.OpWrite, 8))
		require.Len(t, r.client.transmit(r.now), 1)
		if o.timeout == 255 {
			require.Zero(t, r.client.qp.Deadline())
			continue
		}
		require.Empty(t, r.silence(0))
		r.requireSent(1, verbs.StatusRetryExceeded)
	}
}

// Time in which this end did not run does not count as silence of the peer.
func TestOwnPausesDoNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(50 * time.Microsecond)
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	start := r.now
	for range 12 { // probes and repetitions, each noticed 10 s late
		require.NotEmpty(t, r.client.transmit(r.now))
		r.now = r.client.qp.Deadline() + 10*time.Second
		r.client.qp.Timeout(r.now)
	}
	require.Greater(t, r.now-start, 2*time.Minute)
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)

	// A peer that is silent for as many time-outs as ever is gone all the same.
	r.client.post(r.wr(2, verbs.OpWrite, 8))
	sent := r.silence(10 * time.Second)
	r.requireSent(2, verbs.StatusRetryExceeded)
	require.Greater(t, len(sent), minRepetitions)
}

// traffic keeps a node busy until it has done a number of requests.
type traffic struct {
	node      *node
	wr        verbs.SendWR
	depth     int // requests under way at a time
	left      int
	underWay  int
	succeeded int
	failed    []verbs.Status
	failedAt  time.Duration
	slowest   time.Duration // from one completion to the next
	last      time.Duration
}

func newTraffic(n *node, wr verbs.SendWR, count int) *traffic {
	f := &traffic{node: n, wr: wr, depth: 4, left: count, last: n.net.Now}
	n.wake = f.work
	return f
}

func (f *traffic) work() {
	for _, wc := range f.node.send.take() {
		f.underWay--
		if wc.Status != verbs.StatusSuccess {
			f.failed = append(f.failed, wc.Status)
			f.failedAt = f.node.net.Now
			continue
		}
		f.succeeded++
		f.slowest = max(f.slowest, f.node.net.Now-f.last)
		f.last = f.node.net.Now
	}
	for f.left > 0 && f.underWay < f.depth && f.node.qp.State() == verbs.QPReadyToSend {
		f.node.post(f.wr)
		f.left--
		f.underWay++
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	for _, op := range everyOperation {
		for _, c := range []struct {
			who   string
			pause time.Duration
			loss  float64
			ends  bool
		}{
			{"client", 10 * time.Second, 0, false},
			{"client", time.Minute, 0.05, false},
			{"server", 2 * time.Second, 0, false},
			{"server", 3500 * time.Millisecond, 0, false},
			{"server", 2 * time.Second, 0.05, false},
			{"server", time.Minute, 0, true},
			{"both", time.Minute, 0, false},
			{"both", time.Minute, 0.05, false},
		} {
			t.Run(fmt.Sprintf("%v, %s for %v, loss %v", op, c.who, c.pause, c.loss), func(t *testing.T) {
				t.Parallel()
				net, a, b, wr := newTwoRigs(t, options{adaptive: true}, 8)
				net.Config.Loss = c.loss
				wr.Op = op
				serve(b, 8)
				f := newTraffic(a, wr, 2000)
				at := net.Now + time.Millisecond
				net.At(at, func() {
					if c.who != "server" {
						a.stopped = at + c.pause
					}
					if c.who != "client" {
						b.stopped = at + c.pause
					}
				})
				a.settle()
				net.run(10 * time.Minute)
				if c.ends {
					require.Equal(t, verbs.StatusRetryExceeded, f.failed[0])
					require.GreaterOrEqual(t, f.failedAt-at, defaultSilenceTimeout)
					require.Less(t, f.failedAt-at, defaultSilenceTimeout+2*maxBackoff)
					return
				}
				require.Empty(t, f.failed)
				require.Equal(t, 2000, f.succeeded)
				require.Greater(t, f.slowest, c.pause)
				require.Less(t, f.slowest, c.pause+2*maxBackoff, "it goes on soon afterwards")
			})
		}
	}
}

// serve keeps a node's receives filled.
func serve(n *node, size int) {
	receive := verbs.RecvWR{SGL: []verbs.SGE{{Addr: remoteBase, Length: uint32(size), LKey: remoteKey}}}
	for range 16 {
		n.postRecv(receive)
	}
	n.wake = func() {
		for range n.recv.take() {
			n.postRecv(receive)
		}
	}
}

// A peer that reports a gap again and again, or responds to all packets but the oldest, is
// alive: the request lasts longer, but not forever.
func TestStuckPeer(t *testing.T) {
	t.Parallel()
	const round = 20 * time.Millisecond
	for _, c := range []struct {
		name string
		op   verbs.Opcode
		back func(r *rig) []wire.Packet
	}{
		{"sequence NAK", verbs.OpWrite, func(r *rig) []wire.Packet { return []wire.Packet{sequenceNak(r.client.qp.unaPSN)} }},
		{"responses but the first", verbs.OpRead, func(r *rig) []wire.Packet { return r.server.transmit(r.now)[1:] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{adaptive: true, retries: 255})
			r.roundTripOf(round)
			r.client.post(r.wr(1, c.op, 1000))
			start := r.now
			for r.client.qp.State() == verbs.QPReadyToSend {
				r.server.take(r.now, r.client.transmit(r.now)...)
				r.now += round
				back := c.back(r)
				require.NotEmpty(t, back)
				r.client.take(r.now, back...)
				require.Less(t, r.now-start, 2*stuckTimeout)
			}
			r.requireSent(1, verbs.StatusRetryExceeded)
			require.GreaterOrEqual(t, r.now-start, stuckTimeout)
			require.Less(t, r.now-start, stuckTimeout+10*round)
		})
	}
}

// Pauses of this end do not count for such a request either.
func TestStuckPeerAndOwnPauses(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(time.Millisecond)
	r.client.post(r.wr(1, verbs.OpWrite, 1000))
	for range 100 {
		require.NotEmpty(t, r.client.transmit(r.now))
		r.now += 10 * time.Second
		r.client.take(r.now, sequenceNak(r.client.qp.unaPSN))
	}
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
}

// A receiver may stay not ready forever, without regard to the timers.
func TestReceiverNotReadyForever(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, retries: 255, rnrTimer: 31}) // 491.52 ms
	r.client.post(r.wr(1, verbs.OpSend, 8), r.wr(2, verbs.OpWrite, 8))
	start := r.now
	for range 1000 {
		r.exchange()
		until := r.client.qp.Deadline()
		require.Equal(t, r.now+wire.RNRTimer(31), until, "only the wait for the receive")
		r.client.qp.PeerUnreachable(r.now)
		require.Equal(t, until, r.client.qp.Deadline(), "a hint changes nothing meanwhile")
		require.Empty(t, r.client.transmit(r.now))
		r.expire()
	}
	require.Greater(t, r.now-start, 10*stuckTimeout)
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 8)}})
	r.exchange()
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))

	// A peer that dies meanwhile is noticed.
	r.client.post(r.wr(3, verbs.OpSend, 8))
	r.exchange()
	start = r.now
	r.expire()
	r.silence(0)
	r.requireSent(3, verbs.StatusRetryExceeded)
	require.Less(t, r.now-start, defaultSilenceTimeout+2*maxBackoff+wire.RNRTimer(31))
}

func TestReceiverNotReadyLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, rnrRetry: 2, rnrTimer: 12})
	r.client.post(r.wr(1, verbs.OpSend, 8))
	for range 2 {
		r.exchange()
		r.expire()
	}
	r.exchange()
	r.requireSent(1, verbs.StatusRNRRetryExceeded)
}

// hint reports the peer's socket gone.
func (r *rig) hint() { r.client.qp.PeerUnreachable(r.now) }

func TestUnreachablePeer(t *testing.T) {
	t.Parallel()
	for _, op := range everyOperation {
		for _, measured := range []bool{true, false} {
			for _, every := range []time.Duration{0, time.Millisecond, 49 * time.Millisecond} {
				t.Run(fmt.Sprintf("%v, measured %v, a hint every %v", op, measured, every), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, options{adaptive: true, retries: 255})
					if measured {
						r.roundTripOf(50 * time.Microsecond)
					}
					r.client.post(r.wr(1, op, 8), r.wr(2, op, 8), r.wr(3, op, 8))
					oldest := r.client.transmit(r.now)[0].PSN
					start, repeated := r.now, 0
					r.hint()
					nextHint := r.now + every
					for r.client.qp.State() == verbs.QPReadyToSend {
						for _, psn := range psns(r.client.transmit(r.now)) {
							require.Equal(t, oldest, psn)
							repeated++
						}
						if at := r.client.qp.Deadline(); every != 0 && nextHint < at {
							r.now = nextHint
							nextHint += every
							r.hint()
							require.Equal(t, at, r.client.qp.Deadline(), "another hint changes nothing")
							continue
						}
						r.expire()
					}
					require.Equal(t, verbs.StatusRetryExceeded, r.client.send.take()[0].Status)
					require.Equal(t, start+unreachableTimeout, r.now)
					require.Equal(t, minRepetitions, repeated)
				})
			}
		}
	}
}

// Any packet from the peer cancels the effect of a hint, and a later hint starts again.
func TestUnreachablePeerThatLives(t *testing.T) {
	t.Parallel()
	for _, sign := range []struct {
		name string
		back func(r *rig, sent []wire.Packet) []wire.Packet
	}{
		{"acknowledgement", func(r *rig, sent []wire.Packet) []wire.Packet {
			r.server.take(r.now, sent[0])
			return r.server.transmit(r.now)
		}},
		{"sequence NAK", func(r *rig, _ []wire.Packet) []wire.Packet { return []wire.Packet{sequenceNak(r.client.qp.unaPSN)} }},
		{"receiver not ready", func(r *rig, _ []wire.Packet) []wire.Packet { return []wire.Packet{rnrNak(r.client.qp.unaPSN, 12)} }},
	} {
		t.Run(sign.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{adaptive: true})
			for id := range uint64(8) {
				r.client.post(r.wr(id, verbs.OpWrite, 8))
			}
			sent := r.client.transmit(r.now)
			for range 5 {
				r.hint()
				for range 3 {
					r.client.transmit(r.now)
					r.expire()
				}
				require.True(t, r.client.qp.unreachable)
				r.client.take(r.now, sign.back(r, sent)...)
				require.False(t, r.client.qp.unreachable)
				r.client.transmit(r.now)
				if r.client.qp.rnrUntil != 0 {
					r.expire()
				}
				sent = sent[1:]
			}
			r.exchange()
			for r.client.qp.Deadline() != 0 {
				r.expire()
				r.exchange()
			}
			require.Equal(t, verbs.QPReadyToSend, r.client.qp.State())
			require.Len(t, r.client.send.take(), 8)
			require.Zero(t, r.client.qp.Deadline())
		})
	}
}

// Hints that have no effect.
func TestUnreachableWithoutEffect(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.hint()
	require.Zero(t, r.client.qp.Deadline(), "nothing is in flight")
	require.Empty(t, r.client.transmit(r.now))
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.hint()
	require.Zero(t, r.client.qp.Deadline(), "nothing has been sent")
	require.Len(t, r.client.transmit(r.now), 1)
	r.client.modify(verbs.QPError)
	r.hint()
	require.Zero(t, r.client.qp.Deadline())
	require.Empty(t, r.client.transmit(r.now))

	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		r := newRig(t, options{kind: kind, adaptive: kind != verbs.RC})
		r.client.post(r.wr(1, verbs.OpSend, 8))
		require.Len(t, r.client.transmit(r.now), 1, "%v", kind)
		at := r.client.qp.Deadline()
		r.hint()
		require.Equal(t, at, r.client.qp.Deadline(), "%v: a time-out that was set is kept", kind)
		require.Empty(t, r.client.transmit(r.now))
	}
}

// Pauses of this end after a hint do not count.
func TestUnreachableAndOwnPauses(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true})
	r.roundTripOf(50 * time.Microsecond)
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.client.transmit(r.now)
	r.now += 5 * time.Second
	r.hint()
	for range 4 {
		r.client.transmit(r.now)
		r.now += 5 * time.Second
		r.client.qp.Timeout(r.now)
	}
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
}

// Two processes whose hosts report packets to closed ports.
func TestUnreachableHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		away  time.Duration // how long the peer's socket is gone
		lives bool
	}{{"killed", time.Hour, false}, {"opens its socket anew", 150 * time.Millisecond, true}} {
		for _, op := range everyOperation {
			t.Run(fmt.Sprintf("%s, %v", c.name, op), func(t *testing.T) {
				t.Parallel()
				net, a, b, wr := newTwoRigs(t, options{adaptive: true}, 8)
				wr.Op = op
				serve(b, 8)
				f := newTraffic(a, wr, 5000)
				at := net.Now + time.Millisecond
				net.At(at, func() { b.gone, b.refuses = true, true })
				net.At(at+c.away, func() { b.gone = false })
				a.settle()
				net.run(2 * time.Hour)
				if c.lives {
					require.Empty(t, f.failed)
					require.Equal(t, 5000, f.succeeded)
					return
				}
				require.Equal(t, verbs.StatusRetryExceeded, f.failed[0])
				require.Less(t, f.failedAt-at, 2*unreachableTimeout)
			})
		}
	}
}

// Hints arrive all the time while packets are lost: no request fails, and every byte is right.
func TestForgedHints(t *testing.T) {
	t.Parallel()
	o := modelOptions{
		options: options{mtu: 256, adaptive: true, initReads: 4, depth: 16}, seed: 5,
		plan:   plan{requests: 2000, maxMessage: 2048, sizes: sizesAround(256, 2048)},
		faults: faults{Loss: 0.05, Duplicate: 0.02, Reorder: 0.02}, connections: 1, slots: 16, arenaLen: 1 << 16, lazy: true,
	}
	s := newModelRun(t, o, newNetwork(t, 6, faults{}).Random)
	hints := 0
	var forge func()
	forge = func() {
		busy := false
		for _, w := range s.workloads {
			w.qp.PeerUnreachable(s.net.Now)
			w.settle()
			busy = busy || w.posted < w.requests || len(w.awaited) > 0
		}
		if hints++; busy {
			s.net.After(30*time.Microsecond, forge)
		}
	}
	s.net.After(0, forge)
	s.run(time.Minute)
	require.Greater(t, hints, 100)
}
