package rdma_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
)

// loop is a program's own event loop: an engine among other descriptors.
type loop struct {
	t      *testing.T
	rng    *rand.Rand
	engine *pe.Engine
	ep     int
	fd     int // the engine's
	timer  int
	pipe   [2]int
	state  func() string // for failures

	events   int // handled by Progress
	returns  int // of epoll with the engine's descriptor
	others   int // of epoll with another one
	idle     int // returns after which there was nothing to do
	needless int // of those, the ones without a reason: see wait

	cleared bool // since the descriptor was last seen readable
	busy    bool // Progress handled something since Arm
}

func newLoop(t *testing.T, engine *pe.Engine, seed uint64) *loop {
	l := &loop{t: t, engine: engine, rng: rand.New(rand.NewPCG(seed, 0)), cleared: true}
	var err error
	l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	require.NoError(t, err)
	require.NoError(t, unix.Pipe2(l.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() {
		for _, fd := range []int{l.ep, l.timer, l.pipe[0], l.pipe[1]} {
			assert.NoError(t, unix.Close(fd))
		}
	})
	l.fd = must(engine.NotificationFD())
	for _, fd := range []int{l.fd, l.timer, l.pipe[0]} {
		require.NoError(t, unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
	}
	return l
}

// setTicker has the timer's descriptor become readable at intervals; zero ends it.
func (l *loop) setTicker(every time.Duration) {
	t := unix.NsecToTimespec(every.Nanoseconds())
	require.NoError(l.t, unix.TimerfdSettime(l.timer, 0, &unix.ItimerSpec{Interval: t, Value: t}, nil))
}

func (l *loop) progress() int {
	n, err := l.engine.Progress()
	require.NoError(l.t, err)
	l.events += n
	l.busy = l.busy || n > 0
	return n
}

func (l *loop) arm() {
	require.NoError(l.t, l.engine.Arm())
	l.busy = false
}

func (l *loop) clear() {
	require.NoError(l.t, l.engine.Clear())
	l.cleared = true
}

// poll is one call of epoll_wait: it reports whether the engine's descriptor was
// readable, and empties the others.
func (l *loop) poll(timeout time.Duration) bool {
	var events [4]unix.EpollEvent
	n, err := unix.EpollWait(l.ep, events[:], int((timeout+time.Millisecond-1)/time.Millisecond))
	if err == unix.EINTR {
		return false
	}
	require.NoError(l.t, err)
	engine := false
	for _, ev := range events[:n] {
		if int(ev.Fd) == l.fd {
			engine = true
			l.returns++
			continue
		}
		l.others++
		var b [64]byte
		_, _ = unix.Read(int(ev.Fd), b[:]) // it may be empty again
	}
	return engine
}

// wait waits for the notification, with time-outs of every kind, and fails when
// it does not come.
func (l *loop) wait() {
	timeouts := []time.Duration{0, time.Millisecond, lostAfter}
	for deadline := time.Now().Add(lostAfter); !l.poll(timeouts[l.rng.IntN(3)]); {
		if time.Now().After(deadline) {
			require.FailNow(l.t, "an event was lost", "epoll shows nothing after %v, with work outstanding:\n%s", lostAfter, l.state())
		}
	}
}

// lostAfter is more than any event takes, on a machine however busy.
const lostAfter = 5 * time.Minute

// until turns the loop until the condition holds. The condition changes inside
// callbacks only, so with Progress.
func (l *loop) until(done func() bool) {
	for !done() {
		l.randomCalls()
		if done() {
			return
		}
		l.arm()
		if l.rng.IntN(4) == 0 {
			l.progress() // between Arm and Clear
			if done() {
				return
			}
		}
		if l.rng.IntN(8) == 0 && !l.poll(0) {
			continue // a glance, and Arm again
		}
		// What has been handled, or was not cleared, made the descriptor readable.
		l.wait()
		reason := l.busy || !l.cleared
		l.cleared = false
		if l.rng.IntN(8) > 0 {
			l.clear()
		}
		if l.progress() == 0 {
			l.idle++
			if !reason {
				l.needless++
			}
		}
	}
}

// randomCalls calls what may be called at any time.
func (l *loop) randomCalls() {
	for range l.rng.IntN(3) {
		switch l.rng.IntN(6) {
		case 0:
			l.arm()
		case 1:
			l.clear()
		case 2:
			l.arm()
			l.arm()
			l.clear()
		case 3:
			_, err := unix.Write(l.pipe[1], []byte{0})
			require.NoError(l.t, err)
		case 4:
			l.progress()
		case 5:
			for l.progress() > 0 && l.rng.IntN(4) > 0 {
			}
		}
	}
}

// countWakeups waits for a while in which next to nothing happens, and returns how often
// the engine's descriptor was readable.
func (l *loop) countWakeups(d time.Duration) (returns int) {
	before, end := l.returns, time.Now().Add(d)
	for left := d; left > 0; left = time.Until(end) {
		l.arm()
		if l.poll(left) {
			l.clear()
			l.progress()
		}
	}
	return l.returns - before
}
