package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// sleeper is a program that sleeps at its completion queue, as an engine does.
type sleeper struct {
	*side
	cq   *completionQueue
	wake chan struct{}
	// waits and notices are how often it slept by itself, and by the device's goroutine.
	waits, notices int
}

func newSleeper(s *side) *sleeper {
	p := &sleeper{side: s, cq: s.cq.(*completionQueue), wake: make(chan struct{}, 1)}
	s.cq.OnCompletion(func() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	})
	return p
}

// next sleeps until n completions have come, and returns how many have: the last is wcs[0].
func (p *sleeper) next(n int) (got int) {
	p.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); got < n; {
		k, err := p.cq.Poll(p.wcs[:1])
		require.NoError(p.t, err)
		if got += k; k > 0 {
			continue
		}
		armed, err := p.cq.Arm(false)
		require.NoError(p.t, err)
		if !armed {
			continue
		}
		require.Less(p.t, time.Now(), deadline)
		if p.cq.WaitCompletion() {
			p.waits++
			continue
		}
		p.notices++
		select {
		case <-p.wake:
		case <-time.After(time.Until(deadline)):
		}
	}
	return got
}

func openSleepers(t *testing.T) (x, y *sleeper) {
	a, b := openPair(t, Config{DisableLocal: true}, Config{DisableLocal: true}, 4096)
	return newSleeper(a), newSleeper(b)
}

// lendTo has a program come to wait by itself.
func (p *sleeper) lendTo(peer *sleeper) {
	for p.waits == 0 {
		p.post(p.write(peer.side, 8))
		p.next(1)
	}
}

// TestSleepersWakeByThemselves has two programs that sleep send messages to each other.
func TestSleepersWakeByThemselves(t *testing.T) {
	x, y := openSleepers(t)
	done := make(chan struct{})
	const rounds = 300
	for range rounds {
		x.recv(1, x.sge(8, 8))
		y.recv(1, y.sge(8, 8))
	}
	message := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled}
	go func() {
		defer close(done)
		for range rounds {
			for y.next(1); y.wcs[0].Opcode != verbs.WCRecv; y.next(1) {
			}
			y.post(message)
		}
	}()
	for range rounds {
		x.post(message)
		for x.next(1); x.wcs[0].Opcode != verbs.WCRecv; x.next(1) {
		}
	}
	<-done
	t.Logf("waited %d and %d times, notified %d and %d times", x.waits, y.waits, x.notices, y.notices)
	assert.NotZero(t, x.waits+y.waits)
}

// TestPassiveWhileLent: a device answers its peers while its program, to which the endpoint is
// lent, neither polls nor waits.
func TestPassiveWhileLent(t *testing.T) {
	x, y := openSleepers(t)
	y.lendTo(x)
	x.post(x.write(y.side, 8))
	x.next(1)
}

// TestPassiveWhileWaiting: so it does while the program waits, which does not wake it.
func TestPassiveWhileWaiting(t *testing.T) {
	x, y := openSleepers(t)
	y.lendTo(x)
	woken := make(chan int)
	y.recv(1, y.sge(8, 8))
	go func() { woken <- y.next(1) }()
	for range 100 {
		x.post(x.write(y.side, 8))
		x.next(1)
	}
	select {
	case <-woken:
		require.FailNow(t, "a write completes nothing")
	default:
	}
	x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}})
	assert.Equal(t, 1, <-woken)
	x.next(1)
}

// TestInterruptWait ends a wait, also the one that is about to begin.
func TestInterruptWait(t *testing.T) {
	x, y := openSleepers(t)
	x.lendTo(y)
	for range 200 {
		// The endpoint may have been taken back on a machine that stood still.
		armed, err := x.cq.Arm(false)
		require.NoError(t, err)
		require.True(t, armed)
		ended := make(chan bool)
		go func() { ended <- x.cq.WaitCompletion() }()
		x.cq.InterruptWait()
		<-ended
	}
}

// TestAnotherPollerTakesOver: a program that polls is not disturbed by one that waits.
func TestAnotherPollerTakesOver(t *testing.T) {
	x, y := openSleepers(t)
	x.lendTo(y)
	second := must(x.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
	defer func() { require.NoError(t, second.Close()) }()
	slept := make(chan int)
	x.recv(1, x.sge(8, 8))
	go func() { slept <- x.next(1) }()
	for range 100 {
		y.post(y.write(x.side, 8))
		for got := 0; got == 0; {
			_, err := second.Poll(make([]verbs.WC, 1))
			require.NoError(t, err)
			got, err = y.cq.Poll(y.wcs)
			require.NoError(t, err)
		}
	}
	y.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{y.sge(0, 8)}})
	assert.Equal(t, 1, <-slept)
	y.next(1)
}

// TestCloseWhileLent: a device that is closed leaves no goroutine behind, whoever attends.
func TestCloseWhileLent(t *testing.T) {
	x, y := openSleepers(t)
	x.lendTo(y)
	require.True(t, func() bool {
		x.dev.main.mu.Lock()
		defer x.dev.main.mu.Unlock()
		return x.dev.main.soleEndpoint() != nil
	}())
}
