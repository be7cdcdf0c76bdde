package pe_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/pe"
)

// sleeper is an engine in a bubble of testing/synctest, on another goroutine, with a device that
// is Running.
type sleeper struct {
	*pe.Engine
	d     *device
	ended chan error // the result of Run
}

func sleeping(t *testing.T, tasks int) *sleeper {
	t.Helper()
	s := &sleeper{newEngine(t, pe.Config{Spin: -1}), newDevice(t, tasks), make(chan error, 1)}
	require.NoError(t, s.Connect(s.d))
	require.NoError(t, s.d.Start())
	go func() { s.ended <- s.Run(t.Context()) }()
	synctest.Wait()
	return s
}

// stop ends Run with an error, or nil.
func (s *sleeper) stop(t *testing.T) error {
	t.Helper()
	require.NoError(t, s.Do(func() { _ = s.d.Stop() }))
	return s.close(t)
}

func (s *sleeper) close(t *testing.T) error {
	t.Helper()
	err := <-s.ended
	require.NoError(t, s.Close())
	return err
}

// here calls Dispatch, and requires that f runs at once on this goroutine.
func (s *sleeper) here(t *testing.T, f func()) {
	t.Helper()
	ran := goroutine.ID(0)
	require.NoError(t, s.Dispatch(func() {
		ran = goroutine.Current()
		f()
	}))
	require.Equal(t, goroutine.Current(), ran)
}

func TestDispatchOnAnEngineThatSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		passes := s.d.passes
		for range 3 {
			s.here(t, func() {
				assert.ErrorIs(t, s.Friends(friend.Package{}).MayBlock("wait"), pe.ErrReentrant)
				_, err := s.Progress()
				assert.ErrorIs(t, err, pe.ErrReentrant)
				assert.ErrorIs(t, s.Run(t.Context()), pe.ErrReentrant)
				assert.ErrorIs(t, s.Close(), pe.ErrReentrant)
				assert.NoError(t, s.d.ctl.Owned("do it"))
				other := make(chan error)
				go func() { other <- s.d.Stop() }()
				assert.ErrorIs(t, <-other, pe.ErrBusy)
			})
			require.NoError(t, s.Friends(friend.Package{}).MayBlock("wait"), "the engine has been given back")
			require.ErrorIs(t, s.d.Stop(), pe.ErrBusy)
		}
		synctest.Wait()
		assert.Equal(t, passes, s.d.passes, "Run has slept on")
		require.NoError(t, s.stop(t))
	})
}

// Nothing that a function leaves to do is lost, and callbacks run before Dispatch returns.
func TestDispatchDoesWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		done, retried, queued := 0, 0, 0
		w := pe.NewWaiter(func() { retried++ })
		var j *job
		s.here(t, func() {
			var err error
			j, err = s.d.jobs.Alloc()
			require.NoError(t, err)
			j.done = func(j *job, err error) {
				require.NoError(t, err)
				done++
				require.NoError(t, s.d.jobs.Free(j))
			}
			_, err = s.d.jobs.Alloc()
			require.True(t, w.Wait(err))
			require.NoError(t, s.d.submit(j, pe.Aggregate))
		})
		assert.Equal(t, []*job{j}, s.d.posted, "the work that was held back has been posted")

		s.here(t, func() {
			s.d.complete(0, nil)
			assert.NoError(t, s.Do(func() { queued++ }))
			assert.NoError(t, s.Dispatch(func() { queued++ }))
			assert.Zero(t, queued, "functions do not run inside one another")
		})
		assert.Equal(t, []int{1, 1, 2}, []int{done, retried, queued})

		fresh := newNamedDevice(t, "fresh", 1)
		seen := fresh.record()
		s.here(t, func() {
			require.NoError(t, s.Connect(fresh))
			require.NoError(t, fresh.Start())
		})
		assert.Equal(t, changes{{pe.Idle, pe.Running}}, *seen)
		s.here(t, func() { require.NoError(t, fresh.Stop()) })
		synctest.Wait()
		assert.Equal(t, changes{{pe.Idle, pe.Running}, {pe.Running, pe.Stopping}, {pe.Stopping, pe.Idle}}, *seen)
		require.NoError(t, s.stop(t))
	})
}

// Run looks at the contexts again when their states have changed.
func TestDispatchEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		s.here(t, func() { require.NoError(t, s.d.Stop()) })
		require.NoError(t, s.close(t))

		s = sleeping(t, 1)
		s.here(t, func() {
			_, err := s.d.jobs.Alloc()
			require.NoError(t, err)
			s.d.Fail(errBroken)
		})
		err := s.close(t)
		assert.ErrorIs(t, err, errBroken)
		assert.ErrorIs(t, err, pe.ErrTasksHeld, "the task keeps the context from becoming Idle")

		s = sleeping(t, 1)
		s.d.slowStop = true
		s.here(t, func() {
			_, err := s.d.jobs.Alloc()
			require.NoError(t, err)
			s.d.Fail(errBroken)
		})
		synctest.Wait()
		s.here(t, s.d.ctl.Stopped) // from now on, only the task keeps the context
		assert.ErrorIs(t, s.close(t), pe.ErrTasksHeld)
	})
}

// A callback or function that always makes more work does not hold the caller up.
func TestDispatchLeavesTheRestToRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		here, rounds := goroutine.Current(), 0
		var again func()
		again = func() {
			if rounds++; goroutine.Current() == here {
				assert.LessOrEqual(t, rounds, 10)
			}
			if rounds < 1000 {
				assert.NoError(t, s.Do(again))
			}
		}
		s.here(t, again)
		synctest.Wait()
		assert.Equal(t, 1000, rounds)
		require.NoError(t, s.stop(t))
	})
}

func TestDispatchQueuesWhereItCannotRun(t *testing.T) {
	e, d := connected(t, 1)
	var order []string
	add := func(what string) func() { return func() { order = append(order, what) } }
	require.ErrorIs(t, e.Dispatch(nil), pe.ErrInvalid)
	require.NoError(t, e.Dispatch(add("nobody drives the engine")))
	require.NoError(t, e.Do(func() {
		assert.NoError(t, e.Dispatch(add("in a callback")))
		other := make(chan error)
		go func() { other <- e.Dispatch(add("Progress")) }()
		assert.NoError(t, <-other)
		add("Do")()
	}))
	assert.Empty(t, order)
	require.NoError(t, d.Start())
	quiesce(t, e)
	assert.Equal(t, []string{"nobody drives the engine", "Do", "in a callback", "Progress"}, order)
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Dispatch(add("closed")), pe.ErrClosed)
}

// While one goroutine drives the engine in place of Run, the functions of others are queued, and
// Run does not go on, even if its context ends.
func TestDispatchWhileTheEngineIsLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 1)
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		synctest.Wait()

		inside, leave, back := make(chan struct{}), make(chan struct{}), make(chan goroutine.ID)
		var order []int
		ran := goroutine.ID(0)
		go func() {
			assert.NoError(t, e.Dispatch(func() {
				close(inside)
				<-leave
				order = append(order, 1)
			}))
			back <- goroutine.Current()
		}()
		<-inside
		require.NoError(t, e.Dispatch(func() {
			ran = goroutine.Current()
			order = append(order, 2)
		}))
		require.NoError(t, e.Do(func() { order = append(order, 3) }))
		d.ctl.Wake()
		cancel()
		time.Sleep(time.Second)
		assert.Len(t, ended, 0)
		close(leave)
		assert.Equal(t, <-back, ran, "the substitute has run what was queued meanwhile")
		assert.Equal(t, []int{1, 2, 3}, order)
		assert.ErrorIs(t, <-ended, context.Canceled)
		assert.Equal(t, pe.Idle, d.State())
		require.NoError(t, e.Close())
	})
}

func TestDispatchOfAFunctionThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		after := 0
		leave := map[string]func(){
			"panic":  func() { panic("panic") },
			"Goexit": runtime.Goexit,
		}
		for how, f := range leave {
			s.here(t, func() {}) // Run sleeps
			recovered := make(chan any, 1)
			go func() {
				defer func() { recovered <- recover() }()
				_ = s.Dispatch(func() {
					assert.NoError(t, s.Do(func() { after++ }))
					f()
				})
			}()
			if how == "panic" {
				assert.Equal(t, how, <-recovered)
			} else {
				assert.Nil(t, <-recovered)
			}
			synctest.Wait()
		}
		assert.Equal(t, 2, after)

		// A callback that follows panics.
		assert.PanicsWithValue(t, "callback", func() {
			_ = s.Dispatch(func() {
				j, err := s.d.jobs.Alloc()
				require.NoError(t, err)
				j.done = func(j *job, _ error) {
					require.NoError(t, s.d.jobs.Free(j))
					panic("callback")
				}
				require.NoError(t, s.d.submit(j, 0))
				s.d.complete(0, nil)
			})
		})
		synctest.Wait()
		s.here(t, func() {})
		require.NoError(t, s.stop(t))
	})
}

func TestDispatchAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sleeping(t, 1)
		n := 0
		f := func() { n++ }
		assert.Zero(t, testing.AllocsPerRun(100, func() { _ = s.Dispatch(f) }))
		assert.Equal(t, 101, n)
		require.NoError(t, s.stop(t))
	})
}

// Functions of many goroutines run once and in order, while tasks complete, and Run ends when it
// should.
func TestDispatchFromManyGoroutines(t *testing.T) {
	const callers, calls, tasks = 8, 2000, 4
	for _, spin := range []time.Duration{-1, 0, 20 * time.Microsecond} {
		e, d := newEngine(t, pe.Config{Spin: spin}), newDevice(t, tasks)
		require.NoError(t, e.Connect(d))
		require.NoError(t, d.Start())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(t.Context()) }()

		work := make(chan *job, tasks)
		var workers, all sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				for j := range work {
					d.push(j, nil)
				}
			})
		}
		var inside atomic.Int32
		var next [callers]int
		submitted, completed, total := 0, 0, 0
		submit := func() {
			j, err := d.jobs.Alloc()
			if errors.Is(err, pe.ErrExhausted) {
				return
			}
			assert.NoError(t, err)
			j.done = func(j *job, err error) {
				assert.EqualValues(t, 1, inside.Add(1), "two goroutines drive the engine")
				completed++
				assert.NoError(t, err)
				assert.NoError(t, d.jobs.Free(j))
				inside.Add(-1)
			}
			assert.NoError(t, d.submit(j, 0))
			d.posted = d.posted[:0]
			submitted++
			work <- j
		}
		for i := range callers {
			all.Go(func() {
				for k := range calls {
					f := func() {
						assert.EqualValues(t, 1, inside.Add(1), "two goroutines drive the engine")
						if next[i] != k {
							t.Errorf("function %d of caller %d runs in the place of %d", k, i, next[i])
						}
						next[i]++
						total++
						submit()
						inside.Add(-1)
					}
					if (i+k)%7 == 0 {
						assert.NoError(t, e.Do(f))
					} else {
						assert.NoError(t, e.Dispatch(f))
					}
					if k%50 == 0 {
						time.Sleep(10 * time.Microsecond) // the engine goes to sleep
					}
				}
			})
		}
		all.Wait()
		require.NoError(t, e.Dispatch(func() { assert.NoError(t, d.StopWhenDone()) }))
		require.NoError(t, <-ended)
		assert.Equal(t, callers*calls, total)
		assert.Equal(t, submitted, completed)
		assert.Equal(t, pe.Idle, d.State())
		close(work)
		workers.Wait()
		require.NoError(t, e.Close())
	}
}

// Each function is the only thing that happens, so a wake-up that is lost is not made good by the
// next one.
func TestDispatchLosesNoWakeUp(t *testing.T) {
	e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, 2)
	require.NoError(t, e.Connect(d))
	require.NoError(t, d.Start())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(t.Context()) }()
	over := make(chan struct{}, 2)
	var both sync.WaitGroup
	for i := range 2 {
		for range 5000 {
			both.Go(func() {
				assert.NoError(t, e.Dispatch(func() {
					j, err := d.jobs.Alloc()
					assert.NoError(t, err)
					j.done = func(j *job, _ error) {
						assert.NoError(t, d.jobs.Free(j))
						over <- struct{}{}
					}
					assert.NoError(t, d.submit(j, pe.Aggregate))
					both.Go(func() { d.push(j, nil) })
				}))
			})
			if i == 0 {
				assert.NoError(t, e.Dispatch(func() { over <- struct{}{} }))
				<-over
			}
			<-over
			both.Wait()
		}
	}
	require.NoError(t, e.Dispatch(func() { _ = d.Stop() }))
	require.NoError(t, <-ended)
	require.NoError(t, e.Close())
}
