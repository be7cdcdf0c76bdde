package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestAckTimeoutValues(t *testing.T) {
	t.Parallel()
	for code, want := range map[uint8]time.Duration{
		1: 8192 * time.Nanosecond, 8: 1048576 * time.Nanosecond, 14: 67108864 * time.Nanosecond,
		20: 4294967296 * time.Nanosecond, 31: 8796093022208 * time.Nanosecond,
	} {
		r := newRig(t, options{timeout: code})
		r.client.post(r.wr(1, verbs.OpWrite, 8))
		require.Zero(t, r.client.qp.Deadline(), "nothing sent yet")
		require.Len(t, r.client.transmit(r.now), 1)
		require.Equal(t, r.now+want, r.client.qp.Deadline(), "code %d", code)

		r.client.qp.Timeout(r.now + want - 1)
		require.Empty(t, r.client.transmit(r.now+want-1), "a nanosecond early")
		r.client.qp.Timeout(r.now + want)
		require.Len(t, r.client.transmit(r.now+want), 1)
		require.Equal(t, r.now+3*want, r.client.qp.Deadline(), "the second interval is twice as long")
	}
	r := newRig(t, options{timeout: 255})
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	require.Len(t, r.client.transmit(r.now), 1)
	require.Zero(t, r.client.qp.Deadline(), "zero waits for ever")
}

// An acknowledgement restarts the timer while anything is outstanding, and
// stops it when nothing is.
func TestAckTimerFollowsProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{timeout: 10})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	require.Len(t, sent, 2)
	r.now += time.Millisecond
	r.server.take(r.now, sent[0])
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, r.now+4096*1024*time.Nanosecond, r.client.qp.Deadline())
	r.server.take(r.now, sent[1])
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(2, verbs.StatusSuccess)
	require.Zero(t, r.client.qp.Deadline())
}

// timeouts is how long a number of time-outs in a row take.
func timeouts(n uint8) time.Duration {
	ackTimeouts := []time.Duration{0, 1, 3, 7, 11, 15, 19, 23, 27}[n]
	return ackTimeouts * 1048576 * time.Nanosecond
}

func TestTimeoutsUpToTheRetryCount(t *testing.T) {
	t.Parallel()
	for _, op := range everyOperation {
		for retries := range uint8(8) {
			t.Run(fmt.Sprintf("%v, %d", op, retries), func(t *testing.T) {
				t.Parallel()
				o := options{retries: retries}
				if retries == 0 {
					o.retries = 255
				}
				r := newRig(t, o)
				r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 100)}})
				start := r.now

				// Met: the last repetition gets through.
				r.client.post(r.wr(1, op, 8))
				for range retries {
					require.Len(t, r.client.transmit(r.now), 1)
					r.expire()
				}
				r.exchange()
				r.requireSent(1, verbs.StatusSuccess)
				require.Equal(t, start+timeouts(retries), r.now)

				// Exceeded: and success has given it all its retries back.
				start = r.now
				r.client.post(r.wr(2, op, 8))
				for range retries {
					require.Len(t, r.client.transmit(r.now), 1)
					r.expire()
				}
				require.Len(t, r.client.transmit(r.now), 1)
				require.Empty(t, r.client.send.take())
				r.expire()
				r.requireSent(2, verbs.StatusRetryExceeded)
				require.Equal(t, verbs.QPError, r.client.qp.State())
				require.Zero(t, r.client.qp.Deadline())
				require.Empty(t, r.client.transmit(r.now))
				require.Equal(t, start+timeouts(retries+1), r.now)
				require.Equal(t, uint64(1), r.client.counters.RetryExceeded)
			})
		}
	}
}

func sequenceNak(psn uint32) wire.Packet {
	return wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: wire.Nak(wire.NakSequence)}}
}

func TestSequenceNaksWithoutRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{retries: 255})
	r.client.post(r.wr(1, verbs.OpWrite, 600), r.wr(2, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent[0], sent[2])
	r.client.take(r.now, r.server.transmit(r.now)...)
	list := r.client.send.take()
	require.Equal(t, []uint64{1, 2}, ids(list))
	require.Equal(t, verbs.StatusRetryExceeded, list[0].Status)
	require.Equal(t, verbs.StatusFlushed, list[1].Status)
}

// Time-outs do not count while the peer has not taken the packets, for Config.SilenceTimeout at most
// since it last responded.
func TestPeerBehind(t *testing.T) {
	t.Parallel()
	testPeerBehind(t, 0, defaultSilenceTimeout)
	testPeerBehind(t, time.Minute, time.Minute)
}

func testPeerBehind(t *testing.T, set, silence time.Duration) {
	r := newRig(t, options{timeout: 14, retries: 7, silence: set})
	const timeout = 4096 << 14 * time.Nanosecond
	postponements := int((silence + timeout - 1) / timeout)
	behind := func() (postponed bool) {
		at := r.client.qp.Deadline()
		r.client.qp.PeerBehind(at - 1)
		require.Equal(t, at, r.client.qp.Deadline(), "it is not due")
		r.client.qp.PeerBehind(at)
		if postponed = r.client.qp.Deadline() != at; postponed {
			require.Equal(t, at+timeout, r.client.qp.Deadline())
			r.now = at
			r.client.qp.Timeout(r.now)
			require.Empty(t, r.client.transmit(r.now), "nothing is repeated")
		}
		return postponed
	}
	r.client.qp.PeerBehind(r.now)
	require.Zero(t, r.client.qp.Deadline(), "nothing is under way")
	r.client.post(r.wr(1, verbs.OpSend, 8), r.wr(2, verbs.OpSend, 8))
	require.Len(t, r.client.transmit(r.now), 2)
	for _, response := range []wire.Packet{
		{Opcode: wire.RCAcknowledge, PSN: r.o.psn, AETH: wire.AETH{Syndrome: wire.Ack(wire.AckUnlimited)}},
		rnrNak(wire.PSNAdd(r.o.psn, 1), 1),
	} {
		for range postponements {
			require.True(t, behind())
		}
		require.False(t, behind(), "it has been silent for too long")
		r.client.take(r.now, response)
	}
	r.requireSent(1, verbs.StatusSuccess)
	r.client.qp.PeerBehind(r.client.qp.Deadline())
	r.expire() // the wait for a receive
	require.Len(t, r.client.transmit(r.now), 1)
	for range postponements {
		require.True(t, behind())
	}
	for range 7 {
		require.False(t, behind())
		r.expire()
		require.Len(t, r.client.transmit(r.now), 1)
	}
	require.Zero(t, r.client.qp.retries)
	r.expire()
	r.requireSent(2, verbs.StatusRetryExceeded)
}

// A request fails in the end if the peer reports the same gap again and again.
func TestSequenceNaksAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{psn: 0xffffff, retries: 3})
	r.client.post(r.wr(1, verbs.OpWrite, 600))
	naks := 0
	for r.client.qp.State() == verbs.QPReadyToSend {
		require.Equal(t, []uint32{0xffffff, 0, 1}, psns(r.client.transmit(r.now)))
		r.client.take(r.now, sequenceNak(0xffffff))
		naks++
		require.Less(t, naks, 1000)
	}
	require.GreaterOrEqual(t, naks, 4, "the retry count is the least")
	r.requireSent(1, verbs.StatusRetryExceeded)
}

func rnrNak(psn uint32, timer uint8) wire.Packet {
	return wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: wire.RNRNak(timer)}}
}

func TestReceiverNotReady(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWriteImm} {
		for _, n := range []int{0, 8, 700} {
			for _, retries := range []uint8{0, 1, 3, 6} {
				t.Run(fmt.Sprintf("%v of %d, %d", op, n, retries), func(t *testing.T) {
					t.Parallel()
					o := options{rnrRetry: retries, rnrTimer: 12, psn: 0xfffffe, retries: 255}
					if retries == 0 {
						o.rnrRetry = 255
					}
					r := newRig(t, o)
					recv := verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 1000)}}
					const wait = 640 * time.Microsecond // code 12

					// Met: the receive comes before the last repetition.
					start := r.now
					r.client.post(r.wr(1, op, n))
					for range retries {
						r.exchange()
						require.Equal(t, r.now+wait, r.client.qp.Deadline())
						r.client.qp.Timeout(r.now + wait - 1)
						require.Empty(t, r.client.transmit(r.now+wait-1), "before its time")
						r.expire()
					}
					r.server.postRecv(recv)
					r.exchange()
					r.requireSent(1, verbs.StatusSuccess)
					require.Equal(t, start+time.Duration(retries)*wait, r.now)
					require.Len(t, r.server.recv.take(), 1)

					// Exceeded.
					r.client.post(r.wr(2, op, n))
					for range retries {
						r.exchange()
						require.Empty(t, r.client.send.take())
						r.expire()
					}
					r.exchange()
					r.requireSent(2, verbs.StatusRNRRetryExceeded)
					require.Equal(t, verbs.QPError, r.client.qp.State())
					require.Equal(t, uint64(1), r.client.counters.RNRRetryExceeded)
					require.Equal(t, verbs.QPReadyToSend, r.server.qp.State(), "no fault of the responder")
					require.Empty(t, r.server.recv.take())
				})
			}
		}
	}
}

func TestRNRRetrySevenIsForever(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{rnrRetry: 7})
	r.client.post(r.wr(1, verbs.OpSend, 8))
	for range 1000 {
		r.exchange()
		r.expire()
	}
	require.Empty(t, r.client.send.take())
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 8)}})
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, uint64(1000), r.client.counters.RNRNaksReceived)
	require.Equal(t, uint64(1000), r.server.counters.RNRNaksSent)
	require.Zero(t, r.client.counters.RetryExceeded)
}

// While a request waits after an RNR NAK, nothing else uses up its retries.
func TestLateNaksWhileNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{rnrTimer: 31, timeout: 1, retries: 1}) // waits half a second, times out after 8 µs
	r.client.post(r.wr(1, verbs.OpSend, 8))
	r.exchange()
	until := r.client.qp.Deadline()
	require.Equal(t, r.now+wire.RNRTimer(31), until)
	for range 20 {
		r.client.take(r.now, sequenceNak(r.o.psn), rnrNak(r.o.psn, 1))
		require.Empty(t, r.client.transmit(r.now))
		require.Equal(t, until, r.client.qp.Deadline())
	}
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 8)}})
	r.expire()
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
}

// A receiver turns out to be ready, by an acknowledgement that a late RNR NAK overtook.
func TestProgressWhileNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{rnrTimer: 31, timeout: 1, retries: 1})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	r.client.take(r.now, rnrNak(0, 31))
	until := r.client.qp.Deadline()
	r.server.take(r.now, sent[0])
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, until, r.client.qp.Deadline(), "no time-out runs while it waits")
	r.expire()
	r.exchange()
	r.requireSent(2, verbs.StatusSuccess)
}

// A write with immediate that finds no receive for its last packet is not sent again from its
// start.
func TestNotReadyAtTheEndOfAWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpWriteImm, 1000), r.wr(2, verbs.OpWrite, 8))
	r.exchange()
	r.expire()
	require.Equal(t, []wire.Opcode{wire.RCWriteLastImm, wire.RCWriteOnly}, opcodes(r.client.transmit(r.now)))
}
