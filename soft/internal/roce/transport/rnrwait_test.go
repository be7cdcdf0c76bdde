package transport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const notReadyTimer = 12 // 640 µs

// newRigs makes connections of one device that wait for receives of their peers.
func newRigs(t *testing.T, n int, o options) (*RNRWaiters, []*rig) {
	w := &RNRWaiters{}
	o.waiting, o.rnrTimer = w, notReadyTimer
	rigs := make([]*rig, n)
	for i := range rigs {
		rigs[i] = newRig(t, o)
		rigs[i].client.post(rigs[i].wr(1, verbs.OpSend, 8))
		rigs[i].client.transmit(0)
	}
	return w, rigs
}

func nakAll(rigs []*rig, now time.Duration) {
	for _, r := range rigs {
		r.client.take(now, rnrNak(r.o.psn, notReadyTimer))
	}
}

// If many queue pairs wait for a receive, each waits longer, but at most as long again as it
// has waited so far.
func TestManyWaitLonger(t *testing.T) {
	t.Parallel()
	const n = 100
	timer := wire.RNRTimer(notReadyTimer)
	_, rigs := newRigs(t, n, options{})
	now := time.Duration(0)
	for _, want := range []time.Duration{
		timer, // none has waited yet
		timer,
		2 * timer,
		4 * timer,
		8 * timer,
		16 * timer,
		(n - 1) * rnrWaitShare, // 32 times were more
		(n - 1) * rnrWaitShare,
	} {
		nakAll(rigs, now)
		last := rigs[n-1].client
		require.Equal(t, now+want, last.qp.Deadline(), "at %v", now)
		now += want
		for _, r := range rigs {
			r.client.qp.Timeout(now)
			require.Len(t, r.client.transmit(now), 1)
		}
	}
}

// A few waiting queue pairs retransmit as soon as the peer allows, however long they have
// waited.
func TestFewDoNotWaitLonger(t *testing.T) {
	t.Parallel()
	timer := wire.RNRTimer(notReadyTimer)
	_, rigs := newRigs(t, 4, options{})
	for i := range 50 {
		now := time.Duration(i) * timer
		nakAll(rigs, now)
		for _, r := range rigs {
			require.Equal(t, now+timer, r.client.qp.Deadline())
			r.client.qp.Timeout(now + timer)
			r.client.transmit(now + timer)
		}
	}
}

// The wait is bounded for any number of queue pairs.
func TestLongestWaitForReceives(t *testing.T) {
	t.Parallel()
	w, rigs := newRigs(t, 1, options{})
	w.n = 1 << 16
	nakAll(rigs, 0)
	q := rigs[0].client.qp
	q.Timeout(time.Minute)
	rigs[0].client.transmit(time.Minute)
	nakAll(rigs, time.Minute)
	require.Equal(t, time.Minute+maxRNRWait, q.Deadline())
}

// A queue pair with a limit on its retries keeps the interval that the peer named.
func TestLimitedRepetitionsKeepTheInterval(t *testing.T) {
	t.Parallel()
	w, rigs := newRigs(t, 1, options{rnrRetry: 6})
	w.n = 1 << 16
	nakAll(rigs, 0)
	rigs[0].client.qp.Timeout(time.Minute)
	rigs[0].client.transmit(time.Minute)
	nakAll(rigs, time.Minute)
	require.Equal(t, time.Minute+wire.RNRTimer(notReadyTimer), rigs[0].client.qp.Deadline())
}

// A waiting queue pair is counted once, and no longer after the wait has ended in any way.
func TestEndOfWaitIsCounted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig){
		"acknowledged": func(r *rig) { r.client.take(0, ackOf(r.o.psn)) },
		"error":        func(r *rig) { r.client.modify(verbs.QPError) },
		"reset":        func(r *rig) { r.client.modify(verbs.QPReset) },
		"closed":       func(r *rig) { r.client.qp.Close() },
		"refused":      func(r *rig) { r.client.take(0, nakOf(r.o.psn, wire.NakRemoteAccess)) },
		"error and closed": func(r *rig) {
			r.client.modify(verbs.QPError)
			r.client.qp.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, rigs := newRigs(t, 2, options{})
			nakAll(rigs, 0)
			nakAll(rigs, 0)
			require.Equal(t, 2, w.n)
			end(rigs[0])
			require.Equal(t, 1, w.n)
		})
	}
}
