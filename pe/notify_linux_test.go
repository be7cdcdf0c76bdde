package pe_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
)

// poller is a caller's own event loop: an epoll set with the engine in it.
type poller struct {
	t  testing.TB
	ep int
}

func newPoller(t testing.TB, e *pe.Engine) *poller {
	t.Helper()
	fd, err := e.NotificationFD()
	require.NoError(t, err)
	again, err := e.NotificationFD()
	require.NoError(t, err)
	require.Equal(t, fd, again)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Close(ep)) })
	require.NoError(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
	return &poller{t, ep}
}

// wait reports whether the descriptor became readable; timeout in milliseconds.
func (p *poller) wait(timeout int) bool {
	p.t.Helper()
	for {
		n, err := unix.EpollWait(p.ep, make([]unix.EpollEvent, 4), timeout)
		if err == unix.EINTR {
			continue
		}
		require.NoError(p.t, err)
		return n == 1
	}
}

// end stops everything and closes the engine.
func end(t testing.TB, e *pe.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, e.Run(ctx), context.Canceled)
	require.NoError(t, e.Close())
}

func (p *poller) readable() bool { return p.wait(0) }

func TestNotificationOfEveryCause(t *testing.T) {
	causes := map[string]func(*testing.T, *pe.Engine, *device){
		"function":     func(t *testing.T, e *pe.Engine, _ *device) { require.NoError(t, e.Do(func() {})) },
		"completion":   func(_ *testing.T, _ *pe.Engine, d *device) { d.complete(0, nil) },
		"state change": func(t *testing.T, _ *pe.Engine, d *device) { require.NoError(t, d.Stop()) },
		"start of another": func(t *testing.T, e *pe.Engine, _ *device) {
			other := newDevice(t, 1)
			require.NoError(t, e.Connect(other))
			require.NoError(t, other.Start())
		},
		"wake": func(_ *testing.T, _ *pe.Engine, d *device) { d.ctl.Wake() },
		"work held back": func(t *testing.T, _ *pe.Engine, d *device) {
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			j.done = d.free(t)
			require.NoError(t, d.submit(j, pe.Aggregate))
		},
	}
	for name, cause := range causes {
		for _, before := range []bool{true, false} {
			when := " after Arm"
			if before {
				when = " before Arm"
			}
			t.Run(name+when, func(t *testing.T) {
				e, d := connected(t, 2)
				p := newPoller(t, e)
				t.Cleanup(func() { end(t, e) })
				require.NoError(t, d.Start())
				j, err := d.jobs.Alloc()
				require.NoError(t, err)
				j.done = d.free(t)
				require.NoError(t, d.submit(j, 0))
				quiesce(t, e)

				if before {
					cause(t, e, d)
					assert.False(t, p.readable(), "nobody asked")
					require.NoError(t, e.Arm())
				} else {
					require.NoError(t, e.Arm())
					require.NoError(t, e.Arm())
					assert.False(t, p.readable(), "a task in flight is nothing to do")
					cause(t, e, d)
				}
				assert.True(t, p.readable())
				require.NoError(t, e.Clear())
				assert.False(t, p.readable())

				require.NoError(t, e.Arm())
				assert.True(t, p.readable(), "it has not been handled")
				require.NoError(t, e.Arm())
				assert.True(t, p.readable(), "still not")

				quiesce(t, e)
				require.NoError(t, e.Arm())
				require.False(t, p.readable(), "it has been handled, and Arm has taken it back")
				for range 100 {
					require.NoError(t, e.Arm())
					require.False(t, p.readable(), "re-arming does not spin")
					require.NoError(t, e.Clear())
				}
				d.ctl.Wake()
				require.False(t, p.readable(), "Clear takes back Arm")
			})
		}
	}
}

// A pass without Clear uses up what had been announced, and brings about
// something new.
func TestProgressLeavesANotificationForTheRest(t *testing.T) {
	e, other := connected(t, 1)
	d := newDevice(t, 1)
	require.NoError(t, e.Connect(d)) // the last in order
	p := newPoller(t, e)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Stopping {
			require.NoError(t, other.Start())
		}
	})
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	j.done = func(*job, error) { require.NoError(t, d.Stop()) }
	require.NoError(t, d.submit(j, 0))
	quiesce(t, e)
	seen := other.record()

	require.NoError(t, e.Arm())
	d.posted, d.ready = nil, []result{{job: j}} // found by polling only
	assert.False(t, p.readable())
	_, err = e.Progress()
	require.NoError(t, err)
	require.Empty(t, *seen)
	assert.True(t, p.readable(), "the start of the other context has not been reported")
	quiesce(t, e)
	assert.Len(t, *seen, 1)
	require.NoError(t, e.Clear())
}

func TestArmInsideACallback(t *testing.T) {
	e, _ := connected(t, 1)
	var err error
	require.NoError(t, e.Do(func() { err = e.Arm() }))
	quiesce(t, e)
	assert.ErrorIs(t, err, pe.ErrReentrant)
	require.NoError(t, e.Clear(), "without a descriptor there is nothing to clear")
}

func TestCloseReleasesTheDescriptor(t *testing.T) {
	e := newEngine(t, pe.Config{})
	fd, err := e.NotificationFD()
	require.NoError(t, err)
	require.NoError(t, e.Close())
	_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	assert.Equal(t, unix.EBADF, err)
}

// Several goroutines complete tasks at moments of their own, while the event loop
// arms, clears and progresses at random. A lost event would leave it waiting; a
// notification for nothing shows in the count.
func TestEventLoopLosesNothingAndDoesNotSpin(t *testing.T) {
	const tasks, total = 32, 20_000
	e, d := newEngine(t, pe.Config{}), newDevice(t, tasks)
	d.budget = 3
	require.NoError(t, e.Connect(d))
	p := newPoller(t, e)
	work := make(chan *job, tasks)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for j := range work {
				d.push(j, nil)
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	submitted, completed, functions := 0, 0, 0
	post := func(j *job) {
		submitted++
		require.NoError(t, d.submit(j, 0))
		d.posted = d.posted[:0]
		work <- j
	}
	d.OnStateChange(func(_, next pe.State) {
		for next == pe.Running && d.jobs.Available() > 0 {
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			j.done = func(j *job, err error) {
				require.NoError(t, err)
				completed++
				if submitted < total {
					post(j)
					return
				}
				require.NoError(t, d.jobs.Free(j))
				if completed == total {
					require.NoError(t, d.Stop())
				}
			}
			post(j)
		}
	})
	require.NoError(t, d.Start())
	wakeups, idle := 0, 0
	for {
		for range rng.IntN(3) { // sometimes too few, sometimes none
			_, err := e.Progress()
			require.NoError(t, err)
		}
		if e.Active() == 0 {
			break
		}
		if rng.IntN(8) == 0 {
			require.NoError(t, e.Do(func() { functions++ }))
		}
		for range rng.IntN(3) {
			require.NoError(t, e.Arm())
			if rng.IntN(2) == 0 {
				require.NoError(t, e.Clear())
			}
		}
		require.NoError(t, e.Arm())
		if rng.IntN(4) == 0 {
			_, err := e.Progress() // between Arm and Clear
			require.NoError(t, err)
			if rng.IntN(2) == 0 {
				require.NoError(t, e.Clear())
				require.NoError(t, e.Arm())
			}
			if e.Active() == 0 {
				break
			}
		}
		require.True(t, p.wait(300_000), "an event was lost: %d of %d completed", completed, submitted)
		wakeups++
		require.NoError(t, e.Clear())
		n, err := e.Progress()
		require.NoError(t, err)
		if n == 0 {
			idle++
		}
	}
	quiesce(t, e)
	close(work)
	workers.Wait()
	assert.Equal(t, total, completed)
	// Each notification for nothing has its reason: an event that Progress
	// handled between Arm and the notification.
	t.Logf("%d wakeups for %d tasks, %d of them for nothing", wakeups, total, idle)
	assert.Less(t, wakeups, 2*total)
	require.NoError(t, e.Close())
}

func TestWakeAfterClose(t *testing.T) {
	e, d := connected(t, 1)
	newPoller(t, e)
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() {
		for i := range 10_000 {
			if i == 100 {
				close(begun)
			}
			d.ctl.Wake()
		}
	})
	<-begun
	require.NoError(t, e.Arm())
	require.NoError(t, e.Close())
	wg.Wait()
}

// What Close leaves to do is notified.
func TestNotificationAfterClose(t *testing.T) {
	e, d := connected(t, 1)
	other := newNamedDevice(t, "other", 1)
	require.NoError(t, e.Connect(other))
	require.NoError(t, d.Start())
	require.NoError(t, other.Start())
	quiesce(t, e)
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Idle {
			require.NoError(t, other.Stop())
		}
	})
	seen := other.record()
	p := newPoller(t, e)
	require.NoError(t, e.Arm())
	require.NoError(t, d.Close())
	require.Empty(t, *seen)
	require.True(t, p.readable())
	quiesce(t, e)
	require.Len(t, *seen, 2)
	require.NoError(t, e.Close())
}
