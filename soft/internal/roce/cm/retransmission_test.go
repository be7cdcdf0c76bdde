package cm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// sentAt records when a message leaves, in virtual time.
func (w *network) sentAt(a mad.Attribute, lose int) *[]time.Duration {
	times := &[]time.Duration{}
	w.drop = func(_, _ *host, attribute mad.Attribute, _ []byte) bool {
		if attribute != a {
			return false
		}
		*times = append(*times, w.Now)
		return len(*times) <= lose
	}
	return times
}

// The retransmission time of REQ, REP, DREQ and SIDR_REQ follows the measured round trip of
// the peer.
func TestRepetitionFollowsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, measured := range []bool{false, true} {
		least := initialTimeout
		if measured {
			least = minTimeout
		}
		for _, a := range []mad.Attribute{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP, mad.AttrSIDRREQ, mad.AttrSIDRREP} {
			w, x, y := pair(t, faults{})
			x.answerAll()
			y.answerAll()
			y.listen(ListenParams{Service: testService})
			y.listen(ListenParams{Service: testDatagrams, Transport: verbs.UD})
			if measured {
				conn := x.connect(x.params(y))
				w.Pass(time.Second)
				require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
				x.settle()
				w.Pass(time.Minute)
			}
			times := w.sentAt(a, 1)
			switch a {
			case mad.AttrSIDRREQ, mad.AttrSIDRREP:
				_, err := x.Resolve(ResolveParams{Service: testDatagrams, Path: x.pathTo(y)}, w.Now)
				require.NoError(t, err)
				x.settle()
			case mad.AttrDREQ, mad.AttrDREP:
				conn := x.connect(x.params(y))
				w.Pass(time.Second)
				if !measured { // as if nothing had come of the handshake
					clear(x.roundTrips)
				}
				require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
				x.settle()
			default:
				x.connect(x.params(y))
			}
			w.Pass(5 * time.Second)
			require.Len(t, *times, 2, "%v, measured: %v", a, measured)
			apart := (*times)[1] - (*times)[0]
			require.GreaterOrEqual(t, apart, least, "%v, measured: %v", a, measured)
			require.LessOrEqual(t, apart, least+least/4+4*latency, "%v, measured: %v", a, measured)
		}
	}
}

// The intervals double, and in total correspond to the response timeout of IBTA: MaxCMRetries
// retransmissions, and failure after MaxCMRetries + 1 timeouts.
func TestRepetitionsOfTheUnanswered(t *testing.T) {
	t.Parallel()
	for _, n := range []uint8{1, 2, 15} {
		w, x, y := pair(t, faults{})
		x.answerAll()
		y.answerAll()
		y.listen(ListenParams{Service: testService})
		p := x.params(y)
		p.MaxCMRetries = n
		conn := x.connect(p)
		w.Pass(time.Second)
		times := w.sentAt(mad.AttrDREQ, 100) // which has no jitter
		began := w.Now
		require.NoError(t, conn.Disconnect(DisconnectParams{}, w.Now))
		x.settle()
		all := time.Duration(n)*timeoutDuration(18) + timeoutDuration(18)
		w.Pass(all - time.Millisecond)
		require.Equal(t, StateDREQSent, conn.State())
		w.Pass(2 * time.Millisecond)
		require.Equal(t, StateTimeWait, conn.State())
		require.Len(t, *times, int(n)+1)
		wait := minTimeout
		for i, at := range (*times)[1:] {
			got := at - (*times)[i]
			require.LessOrEqual(t, got, wait, "%d of %d", i, n)
			require.GreaterOrEqual(t, got, min(wait, timeoutDuration(18)), "%d of %d", i, n)
			wait = 2 * got
		}
		require.Equal(t, began, (*times)[0])
	}
}

// The round trip of a peer that takes longer than the time-out cannot be measured, since an
// answer does not tell which retransmission it is for. The time-out stays backed off until it
// can (RFC 6298, 5.7).
func TestSlowPeer(t *testing.T) {
	t.Parallel()
	w, x, y := pair(t, faults{})
	x.answerAll()
	y.app = func(e *Event) {
		if e.Type == EventConnectRequest {
			w.After(600*time.Millisecond, func() { y.accept(e.Conn) })
		}
	}
	y.listen(ListenParams{Service: testService})
	var sent []int
	for range 4 {
		times := w.sentAt(mad.AttrREQ, 0)
		p := x.params(y)
		p.ResponseTimeout = 20 // no MRA comes before the REP
		conn := x.connect(p)
		w.Pass(5 * time.Second)
		require.Equal(t, StateEstablished, conn.State())
		sent = append(sent, len(*times))
	}
	require.Equal(t, []int{2, 2, 1, 1}, sent)
	r := x.roundTrips[verbs.GIDFromAddr(y.address.Addr())]
	require.InDelta(t, 600*time.Millisecond, r.Smoothed, float64(time.Millisecond))
	require.Zero(t, r.backedOff)
}

// With 10 % of all messages lost, few dials take a second.
func TestDialUnderLoss(t *testing.T) {
	t.Parallel()
	w, x, y := pair(t, faults{Loss: 0.1})
	x.answerAll()
	y.answerAll()
	y.listen(ListenParams{Service: testService})
	const dials = 1000
	took := map[string]int{}
	for range dials {
		began := w.Now
		conn := x.connect(x.params(y))
		for conn.State() == StateREQSent {
			require.True(t, w.Step())
		}
		switch d := w.Now - began; {
		case d < 40*time.Millisecond:
			took["at once"]++
		case d < 500*time.Millisecond:
			took["after repetitions"]++
		default:
			took["late"]++
		}
		conn.Close(w.Now)
		x.settle()
		w.Pass(30 * time.Second)
	}
	require.Equal(t, dials, took["at once"]+took["after repetitions"]+took["late"])
	require.InDelta(t, 810, took["at once"], 60, fmt.Sprint(took))
	require.Less(t, took["late"], 10, fmt.Sprint(took))
}

// The number of stored round trips is bounded.
func TestRoundTripsAreBounded(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	for i := range 2 * maxMeasured {
		r := retransmission{sentAt: 1}
		r.noteResponse(m, verbs.GID{14: byte(i >> 8), 15: byte(i)}, 2)
	}
	require.Len(t, m.roundTrips, maxMeasured)
}
