package roce

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

func (s *side) write(peer *side, n int) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{s.sge(0, n)}, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
}

// notified waits for the notification of an armed queue.
func notified(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
	case <-time.After(5 * time.Minute):
		require.FailNow(t, "no completion was notified")
	}
}

// TestPollForNothing polls for zero completions, which makes no progress: the device must make
// progress by itself.
func TestPollForNothing(t *testing.T) { overEachPath(t, 4096, testPollForNothing) }

func testPollForNothing(t *testing.T, x, y *side) {
	x.post(x.write(y, 8))
	deadline := time.Now().Add(5 * time.Minute)
	for n := 0; n == 0; {
		_, err := y.cq.Poll(nil)
		require.NoError(t, err)
		n, err = x.cq.Poll(x.wcs)
		require.NoError(t, err)
		require.Less(t, time.Now(), deadline)
	}
	assert.Equal(t, verbs.StatusSuccess, x.wcs[0].Status)
}

// asleep reports whether the device knows that a program sleeps.
func (s *side) asleep() bool {
	s.dev.main.mu.Lock()
	defer s.dev.main.mu.Unlock()
	return s.dev.main.mu.attendance.asleep
}

// TestArmThenPoll does what verbs programs do before they sleep: arm, poll once more, wait.
// The last poll does not mean that another follows.
func TestArmThenPoll(t *testing.T) { overEachPath(t, 4096, testArmThenPoll) }

func testArmThenPoll(t *testing.T, x, _ *side) {
	armed, err := x.cq.Arm(false)
	require.NoError(t, err)
	require.True(t, armed)
	n, err := x.cq.Poll(x.wcs)
	require.NoError(t, err)
	require.Zero(t, n)
	assert.True(t, x.asleep(), "the device waits for a program that sleeps")
	second := must(x.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
	_, err = second.Poll(x.wcs)
	require.NoError(t, err)
	assert.False(t, x.asleep(), "another program polls")
	require.NoError(t, second.Close())
}

// TestRestOfABurst posts more than one round sends to a peer that is gone, and sleeps. The
// rest is sent and timers run, although no packet wakes the device.
func TestRestOfABurst(t *testing.T) {
	const size = 1 << 20
	x, y := openSide(t, Config{}, size), openSide(t, Config{}, size)
	x.mtu, y.mtu = 256, 256
	x.connect(y)
	y.connect(x)
	x.post(x.write(y, size)) // lets the window grow
	require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
	require.Eventually(t, func() bool {
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		return x.dev.main.mu.deadline == 0 && x.dev.main.mu.ready.Len() == 0
	}, 5*time.Minute, time.Millisecond)

	require.NoError(t, y.dev.SetFaults(faults.Faults{Loss: 1}))
	wake := make(chan struct{}, 1)
	x.cq.OnCompletion(func() { wake <- struct{}{} })
	armed, err := x.cq.Arm(false)
	require.NoError(t, err)
	require.True(t, armed)
	x.post(x.write(y, size))
	notified(t, wake)
	assert.Equal(t, verbs.StatusRetryExceeded, x.wait(1)[0].Status)
}

// TestRounds: if many queue pairs have much to send, the lock is held for a bounded number of
// packets, and all of them send.
func TestRounds(t *testing.T) {
	const pairs, size = 32, 1 << 20
	x, y := openSide(t, Config{}, size), openSide(t, Config{}, size)
	first := x.qp
	var qps []*queuePair
	for range pairs {
		x.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 1}))
		x.connect(y)
		qps = append(qps, x.qp.(*queuePair))
	}
	d := x.dev
	d.mu.Lock()
	for _, q := range qps {
		_, err := q.transport.PostSend([]verbs.SendWR{x.write(y, size)})
		require.NoError(t, err)
		d.main.activate(q)
	}
	var sent []uint64
	round := min(roundPackets, roundBytes/int(qps[0].transport.PathMTU()))
	for range pairs * sendBudget / round { // the first window is one budget
		before := d.main.mu.counters.SentPackets
		d.main.transmit(0)
		sent = append(sent, d.main.mu.counters.SentPackets-before)
	}
	waiting := d.main.mu.ready.Len() > 0
	d.mu.Unlock()
	for _, n := range sent {
		assert.LessOrEqual(t, n, uint64(round+sendBudget))
	}
	assert.False(t, waiting, "some have not sent")
	for _, q := range qps {
		require.NoError(t, q.Close())
	}
	x.qp = first
}

// TestArmForLess: arming for solicited completions does not override arming for all (IBTA
// 11.2.8.5).
func TestArmForLess(t *testing.T) { overEachPath(t, 4096, testArmForLess) }

func testArmForLess(t *testing.T, x, y *side) {
	wake := make(chan struct{}, 1)
	x.cq.OnCompletion(func() { wake <- struct{}{} })
	for _, solicited := range []bool{false, true} {
		armed, err := x.cq.Arm(solicited)
		require.NoError(t, err)
		require.True(t, armed)
	}
	x.post(x.write(y, 8))
	notified(t, wake)
}

// TestFatal: a device that can no longer wait for packets reports it; a closed one does not.
func TestFatal(t *testing.T) {
	x := openSide(t, Config{}, 64)
	var events []verbs.Event
	defer x.dev.SubscribeEvents(func(e verbs.Event) { events = append(events, e) })()
	x.dev.fatal(net.ErrClosed)
	assert.Empty(t, events)
	x.dev.fatal(errors.ErrUnsupported)
	assert.Equal(t, []verbs.Event{{Type: verbs.EventDeviceFatal}}, events)
}

// ArmNext notifies at once for completions that the queue holds, if they count.
func TestArmNext(t *testing.T) {
	x := openSide(t, Config{}, 64)
	x.connect(x)
	calls := make(chan struct{}, 10)
	x.cq.OnCompletion(func() { calls <- struct{}{} })
	next := x.cq.(cverbs.CQ)
	deliver := func(flags verbs.SendFlags) {
		t.Helper()
		_, err := x.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{x.sge(0, 8)}}})
		require.NoError(t, err)
		held := x.cq.(cverbs.CQ).Pending()
		x.post(verbs.SendWR{Op: verbs.OpSend, Flags: flags, SGL: []verbs.SGE{x.sge(0, 8)}})
		require.Eventually(t, func() bool { return x.cq.(cverbs.CQ).Pending() > held }, 5*time.Minute, time.Millisecond)
	}
	arm := func(solicited, atOnce bool) {
		t.Helper()
		require.NoError(t, next.ArmNext(solicited))
		if !atOnce {
			require.Empty(t, calls)
			return
		}
		require.Len(t, calls, 1)
		<-calls
	}
	arm(false, false) // the queue is empty
	deliver(0)
	<-calls
	armed, err := x.cq.Arm(false)
	require.NoError(t, err)
	require.False(t, armed, "a completion waits to be polled")
	arm(false, false) // it was notified
	deliver(0)
	<-calls
	deliver(0)
	arm(true, false) // it is not solicited
	arm(false, true)
	deliver(verbs.FlagSolicited)
	require.Empty(t, calls, "the queue is not armed")
	deliver(0)
	x.wcs = x.wcs[:4]
	x.wait(4) // the solicited one is among them
	arm(true, false)
	deliver(0)
	arm(true, false)
	deliver(verbs.FlagSolicited)
	<-calls
	// Completions of a queue pair that is reset do not count.
	deliver(verbs.FlagSolicited)
	require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	arm(true, false)
	arm(false, false)
	require.Equal(t, struct{ all, solicited int }{}, asCompletionQueue(x.cq).fresh)
}

// A program that has armed its queue to stay awake is notified while it makes progress, after it has
// said that it sleeps, and also if it does neither.
func TestArmAwake(t *testing.T) { overEachPath(t, 4096, testArmAwake) }

func testArmAwake(t *testing.T, x, y *side) {
	calls := make(chan struct{}, 10)
	x.cq.OnCompletion(func() { calls <- struct{}{} })
	cq := x.cq.(cverbs.CQ)
	for name, then := range map[string]func(){
		"progress": func() {
			for len(calls) == 0 {
				require.NoError(t, cq.Progress(false))
			}
		},
		"sleep":   func() { require.NoError(t, cq.Progress(true)) },
		"neither": func() {},
	} {
		require.NoError(t, cq.ArmAwake(false), name)
		x.post(x.write(y, 8))
		then()
		notified(t, calls)
		x.wait(1)
	}
	require.Empty(t, calls)
}

// A completion queue keeps what it holds when it is resized.
func TestResizeCompletionQueue(t *testing.T) {
	x := openSide(t, Config{}, 64)
	x.connect(x)
	cq := x.cq.(cverbs.CQ)
	for id := range uint64(3) {
		wr := x.write(x, 8)
		wr.ID = id
		x.post(wr)
	}
	require.Eventually(t, func() bool {
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		return asCompletionQueue(x.cq).entries.Len() == 3
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, cq.Resize(2), verbs.ErrInvalid)
	require.ErrorIs(t, cq.Resize(0), verbs.ErrLimit)
	require.ErrorIs(t, cq.Resize(maxCQE+1), verbs.ErrLimit)
	require.NoError(t, cq.Resize(3))
	require.Equal(t, 3, x.cq.Capacity())
	for id, wc := range x.wait(3) {
		require.Equal(t, uint64(id), wc.ID)
	}
	require.NoError(t, cq.Resize(1))
}

// A goroutine sleeps at the shard of a completion queue: what arrives wakes it, and the device's own
// goroutine does the work when it has left, or is awake for long. One goroutine at a time can sleep there.
func TestSleep(t *testing.T) { overEachPath(t, 4096, testSleep) }

func testSleep(t *testing.T, x, y *side) {
	place := asCompletionQueue(y.cq).Sleeper()
	var ended atomic.Bool
	y.cq.OnCompletion(func() { ended.Store(true) })
	for i := range 50 {
		y.recv(uint64(i), y.sge(0, 8))
		y.sleep()
		slept := make(chan bool)
		go func() { slept <- place.Sleep(&ended) }()
		if i == 0 {
			require.Eventually(t, func() bool {
				s := y.shard()
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.mu.attendance.sleeper == sleeping
			}, time.Minute, time.Millisecond)
			require.False(t, place.Sleep(new(atomic.Bool)), "another goroutine sleeps there")
		}
		x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}})
		require.True(t, <-slept)
		y.wait(1)
		x.wait(1)
		ended.Store(false)
		switch i % 10 {
		case 5:
			place.Leave()
			fallthrough
		case 7: // the device's goroutine takes over
			x.post(x.write(y, 8))
			x.wait(1)
		}
	}
	go func() {
		ended.Store(true)
		place.Wake()
	}()
	require.True(t, place.Sleep(&ended))
	place.Leave()
	y.cq.OnCompletion(func() {})
}
