package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// sentFor locks a device, waits for a packet of its peer, and returns what it has sent when it
// has polled for a program.
func (s *side) sentFor(t *testing.T, now time.Duration) uint64 {
	d := s.dev.main
	received, sent := d.counters.ReceivedPackets, d.counters.SentPackets
	for deadline := time.Now().Add(5 * time.Minute); d.counters.ReceivedPackets == received; {
		require.Less(t, time.Now(), deadline)
		d.poll(now)
	}
	return d.counters.SentPackets - sent
}

// TestAcknowledgementsWaitForTheProgram: they leave with what it posts, with its next look, or
// when it has not come back.
func TestAcknowledgementsWaitForTheProgram(t *testing.T) {
	const now = time.Hour // none of the device's deadlines is due
	for name, test := range map[string]struct {
		act  func(x, y *side)
		sent uint64
	}{
		"it answers": {func(x, y *side) {
			q := y.qp.(*queuePair)
			_, err := q.transport.PostSend([]verbs.SendWR{y.write(x, 8)})
			require.NoError(t, err)
			y.dev.main.activate(q)
			y.dev.main.transmit(now)
		}, 2},
		"it looks again":       {func(_, y *side) { y.dev.main.poll(now) }, 1},
		"others make progress": {func(_, y *side) { y.dev.main.progress(now+ackHoldTime-1, nil) }, 0},
		"it does not come":     {func(_, y *side) { y.dev.main.progress(now+ackHoldTime, nil) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := openPair(t, Config{DisableLocal: true}, Config{DisableLocal: true}, 4096)
			d := y.dev.main
			d.mu.Lock()
			defer d.mu.Unlock()
			x.post(x.write(y, 8))
			require.Zero(t, y.sentFor(t, now))
			require.NotZero(t, d.deadline)
			require.LessOrEqual(t, d.deadline, now+ackHoldTime, "the goroutine sees to it")
			before := d.counters.SentPackets
			test.act(x, y)
			assert.Equal(t, test.sent, d.counters.SentPackets-before)
			assert.Equal(t, test.sent == 0, d.acks.heldUntil != 0)
		})
	}
}

// TestSlowProgramsHoldNothing: the peers of a program that computes between its looks are not
// kept waiting.
func TestSlowProgramsHoldNothing(t *testing.T) {
	x, y := openPair(t, Config{DisableLocal: true}, Config{DisableLocal: true}, 4096)
	d := y.dev.main
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Hour
	x.post(x.write(y, 8))
	require.Zero(t, y.sentFor(t, now))
	late := now + promptAnswer + 1
	d.poll(late)
	x.post(x.write(y, 8))
	assert.Equal(t, uint64(1), y.sentFor(t, late), "it is not held")
	x.post(x.write(y, 8))
	assert.Zero(t, y.sentFor(t, late+2*holdPenalty*promptAnswer), "it is tried again")
}
