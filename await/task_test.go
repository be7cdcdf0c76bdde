package await_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/test/petest"
)

var (
	background = context.Background()
	errBoom    = errors.New("boom")
)

// eventually waits for what the engine's goroutine sees.
func eventually(t testing.TB, e *pe.Engine, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		var ok bool
		do(t, e, func() { ok = is() })
		if ok {
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, "never happened: "+what)
		}
		time.Sleep(time.Millisecond) // simulated hosts would find no turn
	}
}

func TestTask(t *testing.T) {
	e, l := running(t, 1)
	do(t, e, func() { l.Auto = true })
	var collected *petest.Job
	require.NoError(t, await.Task(background, e, l.Jobs.Alloc, func(j *petest.Job) error {
		require.False(t, j.InFlight())
		collected = j
		return nil
	}))
	require.NotNil(t, collected)
	require.NoError(t, await.Task(background, e, l.Jobs.Alloc, nil))
	require.ErrorIs(t, await.Task(background, e, l.Jobs.Alloc, func(*petest.Job) error { return errBoom }), errBoom)
	do(t, e, func() { require.Zero(t, l.Allocated()) })
}

func TestTaskFails(t *testing.T) {
	e, l := running(t, 1)
	result := make(chan error)
	go func() {
		result <- await.Task(background, e, l.Jobs.Alloc, func(*petest.Job) error { panic("collected a failure") })
	}()
	eventually(t, e, "the job is posted", func() bool { return len(l.Posted) == 1 })
	do(t, e, func() { l.FinishWith(errBoom) })
	require.ErrorIs(t, <-result, errBoom)
	do(t, e, func() { require.Zero(t, l.Allocated()) })
}

// Posts are submitted in their order, those that wait for a task too, and each Pending has its outcome.
func TestPost(t *testing.T) {
	e, l := running(t, 2)
	post := func(alloc func() (*petest.Job, error)) *await.Pending {
		p, err := await.Post(e, alloc)
		require.NoError(t, err)
		return p
	}
	var jobs []*petest.Job
	alloc := func() (*petest.Job, error) {
		j, err := l.Jobs.Alloc()
		if err == nil {
			jobs = append(jobs, j)
		}
		return j, err
	}
	first, second, third := post(alloc), post(alloc), post(alloc)
	eventually(t, e, "two jobs are posted", func() bool { return len(l.Posted) == 2 })
	require.ErrorIs(t, first.Err(), await.ErrPending)
	require.EqualError(t, first, "await: a posted task is under way")
	do(t, e, func() {
		require.Equal(t, jobs, l.Posted)
		l.FinishWith(errBoom)
	})
	require.ErrorIs(t, first.Wait(background), errBoom)
	eventually(t, e, "the third job is posted", func() bool { return len(l.Posted) == 2 && len(jobs) == 3 })
	do(t, e, func() { l.Finish(0) })
	require.NoError(t, second.Wait(background))
	ctx, cancel := context.WithCancel(background)
	cancel()
	require.ErrorIs(t, third.Wait(ctx), await.ErrPending)
	do(t, e, func() { l.Finish(0) })
	require.NoError(t, third.Wait(background))
	do(t, e, func() { require.Zero(t, l.Allocated()) })

	require.ErrorIs(t, post(func() (*petest.Job, error) { return nil, errBoom }).Wait(background), errBoom)
	require.ErrorIs(t, post(func() (*petest.Job, error) { return nil, nil }).Wait(background), await.ErrInvalid)
	_, err := await.Post[*petest.Job](e, nil)
	require.ErrorIs(t, err, await.ErrInvalid)
	_, err = await.Post(nil, alloc)
	require.ErrorIs(t, err, await.ErrInvalid)
	closed := pe.New(pe.Config{})
	require.NoError(t, closed.Close())
	_, err = await.Post(closed, alloc)
	require.ErrorIs(t, err, pe.ErrClosed)
}

func TestTaskRefusals(t *testing.T) {
	e, l := running(t, 1)
	none := func() (*petest.Job, error) { return nil, nil }
	fails := func() (*petest.Job, error) { return nil, errBoom }
	require.ErrorIs(t, await.Task(background, e, none, nil), await.ErrInvalid)
	require.ErrorIs(t, await.Task(background, e, fails, nil), errBoom)
	noBuffer := func() (*petest.Job, error) { return nil, fmt.Errorf("no buffer: %w", bufinv.ErrExhausted) }
	require.ErrorIs(t, await.Task(background, e, noBuffer, nil), pe.ErrExhausted, "no task can be waited for")
	require.ErrorIs(t, await.Task[*petest.Job](background, e, nil, nil), await.ErrInvalid)
	require.ErrorIs(t, await.Task(background, nil, l.Jobs.Alloc, nil), await.ErrInvalid)

	var inside error
	do(t, e, func() { inside = await.Task(background, e, l.Jobs.Alloc, nil) })
	require.ErrorIs(t, inside, pe.ErrReentrant)

	ctx, cancel := context.WithCancelCause(background)
	cancel(errBoom)
	require.ErrorIs(t, await.Task(ctx, e, func() (*petest.Job, error) { panic("allocated in vain") }, nil), errBoom)

	// A task that cannot be submitted is freed.
	do(t, e, func() { l.Auto = true })
	stop := func() (*petest.Job, error) {
		j, err := l.Jobs.Alloc()
		return j, errors.Join(err, l.Stop())
	}
	err := await.Task(background, e, stop, nil)
	require.ErrorIs(t, err, pe.ErrBadState)
	require.NoError(t, await.State(background, l, pe.Idle))
	require.ErrorIs(t, await.Task(background, e, l.Jobs.Alloc, nil), pe.ErrBadState)
}

func TestTaskOnAClosedEngine(t *testing.T) {
	e := pe.New(pe.Config{})
	require.NoError(t, e.Close())
	l := petest.NewLab(t, 1)
	require.ErrorIs(t, await.Task(background, e, l.Jobs.Alloc, nil), pe.ErrClosed)
	require.ErrorIs(t, await.Func(background, e, func() error { return nil }), pe.ErrClosed)
}

// Nobody drives the engine: ctx ends the wait, and nothing is begun later.
func TestTaskOnAnEngineAtRest(t *testing.T) {
	l := petest.NewLab(t, 1)
	e := pe.New(pe.Config{})
	require.NoError(t, e.Connect(l))
	ctx, cancel := context.WithTimeout(background, time.Millisecond)
	defer cancel()
	require.ErrorIs(t, await.Task(ctx, e, func() (*petest.Job, error) { panic("begun") }, nil), context.DeadlineExceeded)
	require.ErrorIs(t, await.Func(ctx, e, func() error { panic("begun") }), context.DeadlineExceeded)
	require.ErrorIs(t, await.Start(ctx, l), context.DeadlineExceeded)
	require.NoError(t, e.Close())
	require.Equal(t, pe.Idle, l.State())
}

func TestTaskCancelledInFlight(t *testing.T) {
	for _, outcome := range []error{nil, errBoom} {
		t.Run(fmt.Sprint(outcome), func(t *testing.T) {
			e, l := running(t, 1)
			ctx, cancel := context.WithCancelCause(background)
			result := make(chan error)
			go func() {
				result <- await.Task(ctx, e, l.Jobs.Alloc, func(*petest.Job) error { panic("collected after the wait had ended") })
			}()
			eventually(t, e, "the job is posted", func() bool { return len(l.Posted) == 1 })
			cancel(errBoom)
			err := <-result
			require.ErrorIs(t, err, errBoom)
			var pending *await.Pending
			require.ErrorAs(t, err, &pending)
			require.ErrorIs(t, pending.Err(), await.ErrPending)
			ended, stop := context.WithCancel(background)
			stop()
			require.ErrorIs(t, pending.Wait(ended), await.ErrPending)
			require.ErrorIs(t, pending.Wait(ended), context.Canceled)
			do(t, e, func() {
				require.Equal(t, 1, l.Allocated(), "freed in flight")
				require.ErrorIs(t, pending.Wait(background), pe.ErrReentrant)
				l.FinishWith(outcome)
			})
			require.Equal(t, outcome, pending.Wait(background))
			<-pending.Done()
			require.Equal(t, outcome, pending.Err())
			do(t, e, func() { require.Zero(t, l.Allocated()) })
		})
	}
}

// A call that is given up while its task is being allocated submits nothing, and
// returns when the function that allocates has.
func TestTaskCancelledInAlloc(t *testing.T) {
	for name, c := range map[string]struct {
		tasks  int
		queued bool // the task is not allocated on the caller's goroutine
	}{
		"allocated": {2, true}, "exhausted": {1, true}, "allocated at once": {2, false}, "exhausted at once": {1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, l := running(t, c.tasks)
				var mine *petest.Job
				do(t, e, func() { mine, _ = l.Jobs.Alloc() })
				ctx, cancel := context.WithCancel(background)
				running, tried := true, 0
				synctest.Wait()
				if c.queued {
					hold := make(chan struct{})
					require.NoError(t, e.Do(func() { <-hold }))
					go func() {
						synctest.Wait() // the caller waits
						close(hold)
					}()
				}
				err := await.Task(ctx, e, func() (*petest.Job, error) {
					cancel()
					if c.queued {
						synctest.Wait() // the caller knows
					}
					defer func() { running = false }()
					tried++
					return l.Jobs.Alloc()
				}, nil)
				require.False(t, running)
				require.ErrorIs(t, err, context.Canceled)
				require.False(t, errors.As(err, new(*await.Pending)))
				do(t, e, func() {
					require.Empty(t, l.Posted)
					require.NoError(t, mine.Free())
				})
				do(t, e, func() { require.Zero(t, l.Allocated()) })
				require.Equal(t, 1, tried)
			})
		})
	}
}

func TestTaskWaitsItsTurn(t *testing.T) {
	e, l := running(t, 1)
	var mine *petest.Job
	do(t, e, func() { mine, _ = l.Jobs.Alloc() }) // a program that uses callbacks
	do(t, e, func() { l.Auto = true })
	var order []int
	var all sync.WaitGroup
	for i := range 5 {
		asked := false
		all.Go(func() {
			err := await.Task(background, e,
				func() (*petest.Job, error) { asked = true; return l.Jobs.Alloc() },
				func(*petest.Job) error { order = append(order, i); return nil })
			if err != nil {
				panic(err)
			}
		})
		eventually(t, e, "it has asked", func() bool { return asked })
	}
	// One of them gives up, and is forgotten.
	ctx, cancel := context.WithCancel(background)
	result := make(chan error)
	tried := 0
	go func() {
		result <- await.Task(ctx, e, func() (*petest.Job, error) { tried++; return l.Jobs.Alloc() }, nil)
	}()
	eventually(t, e, "it has asked", func() bool { return tried == 1 })
	cancel()
	err := <-result
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, errors.As(err, new(*await.Pending)))

	do(t, e, func() { require.NoError(t, mine.Free()) })
	all.Wait()
	require.Equal(t, []int{0, 1, 2, 3, 4}, order)
	require.Equal(t, 1, tried)
}

// The context stops while one call has the task and another waits for it.
func TestTaskStopped(t *testing.T) {
	e, l := running(t, 1)
	result := make(chan error)
	asked := 0
	for range 2 {
		go func() {
			result <- await.Task(background, e, func() (*petest.Job, error) { asked++; return l.Jobs.Alloc() }, nil)
		}()
	}
	eventually(t, e, "both have asked", func() bool { return asked == 2 })
	require.NoError(t, await.Stop(background, l))
	a, b := <-result, <-result
	if errors.Is(a, pe.ErrBadState) {
		a, b = b, a
	}
	require.ErrorIs(t, a, petest.ErrFlushed)
	require.ErrorIs(t, b, pe.ErrBadState)
}

func TestTaskPanics(t *testing.T) {
	l := petest.NewLab(t, 1)
	l.Auto = true
	e := pe.New(pe.Config{})
	require.NoError(t, e.Connect(l))
	require.NoError(t, l.Start())
	panics := func(f func() error) {
		t.Helper()
		result := make(chan error, 1)
		go func() { result <- f() }()
		require.PanicsWithValue(t, "oops", func() {
			for len(result) == 0 {
				_, _ = e.Progress()
			}
		})
		require.ErrorIs(t, <-result, await.ErrPanicked)
		require.Zero(t, l.Allocated())
	}
	panics(func() error { return await.Task(background, e, func() (*petest.Job, error) { panic("oops") }, nil) })
	panics(func() error {
		return await.Task(background, e, l.Jobs.Alloc, func(*petest.Job) error { panic("oops") })
	})
	panics(func() error { return await.Func(background, e, func() error { panic("oops") }) })
	require.NoError(t, l.Stop())
	for l.State() != pe.Idle {
		_, err := e.Progress()
		require.NoError(t, err)
	}
	require.NoError(t, e.Close())
}

// On an engine that sleeps, what panics on the caller's goroutine passes through the call, and the
// engine remains usable.
func TestTaskPanicsOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l := running(t, 1)
		do(t, e, func() { l.Auto = true })
		for _, f := range []func() error{
			func() error { return await.Func(t.Context(), e, func() error { panic("oops") }) },
			func() error { return await.Task(t.Context(), e, func() (*petest.Job, error) { panic("oops") }, nil) },
			func() error {
				return await.Task(t.Context(), e, l.Jobs.Alloc, func(*petest.Job) error { panic("oops") })
			},
		} {
			synctest.Wait()
			require.PanicsWithValue(t, "oops", func() { _ = f() })
			require.NoError(t, await.Task(t.Context(), e, l.Jobs.Alloc, nil))
		}
	})
}

// Many calls for few tasks, cancelled at any moment, with failures and a stop:
// each has one outcome, reports it truly, and leaves nothing behind.
func TestTaskModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type plan struct {
			cancel  int // yields before it, or below zero: never
			fails   bool
			collect error
		}
		tasks := rapid.IntRange(1, 3).Draw(rt, "tasks")
		plans := make([]plan, rapid.IntRange(1, 12).Draw(rt, "calls"))
		for i := range plans {
			plans[i].cancel = rapid.IntRange(-1, 30).Draw(rt, "cancel")
			plans[i].fails = rapid.Bool().Draw(rt, "fails")
			if rapid.Bool().Draw(rt, "collect fails") {
				plans[i].collect = errBoom
			}
		}
		stopAt := rapid.IntRange(-1, 40).Draw(rt, "stop")

		l := petest.NewLab(t, tasks)
		e := pe.New(pe.Config{})
		require.NoError(rt, e.Connect(l))
		require.NoError(rt, l.Start())
		var returned, collected atomic.Int32
		var list []error
		var mu sync.Mutex
		var pendings []*await.Pending
		errJob := errors.New("job failed")
		for _, p := range plans {
			ctx, cancel := context.WithCancelCause(background)
			gaveUp := errors.New("gave up")
			if p.cancel >= 0 {
				go func() {
					for range p.cancel {
						time.Sleep(time.Microsecond)
					}
					cancel(gaveUp)
				}()
			}
			go func() {
				defer returned.Add(1)
				defer cancel(nil)
				over, got := false, false
				err := await.Task(ctx, e, func() (*petest.Job, error) {
					j, err := l.Jobs.Alloc()
					if err == nil && p.fails {
						j.Err = errJob
					}
					return j, err
				}, func(*petest.Job) error {
					if over {
						panic("collected after the call had returned")
					}
					got = true
					collected.Add(1)
					return p.collect
				})
				over = true
				mu.Lock()
				defer mu.Unlock()
				var pending *await.Pending
				switch {
				case errors.As(err, &pending):
					pendings = append(pendings, pending)
					if got || !errors.Is(err, gaveUp) {
						list = append(list, fmt.Errorf("a pending task was collected, or has another cause: %w", err))
					}
				case err == nil:
					if !got || p.fails || p.collect != nil {
						list = append(list, errors.New("success without reason"))
					}
				case errors.Is(err, errJob) && p.fails && !got,
					errors.Is(err, errBoom) && got,
					errors.Is(err, gaveUp) && !got && p.cancel >= 0,
					stopAt >= 0 && !got && (errors.Is(err, petest.ErrFlushed) || errors.Is(err, pe.ErrBadState)):
				default:
					list = append(list, fmt.Errorf("collected %v: %w", got, err))
				}
			}()
		}
		for step := 0; int(returned.Load()) < len(plans) || l.InFlight() > 0; step++ {
			if step == stopAt {
				require.NoError(rt, l.Stop())
			}
			if len(l.Posted) > 0 && step%3 == 0 {
				l.Finish(0)
			}
			_, err := e.Progress()
			require.NoError(rt, err)
			if l.State() == pe.Running {
				time.Sleep(time.Microsecond)
			}
		}
		require.Empty(rt, list)
		for _, p := range pendings {
			require.NotErrorIs(rt, p.Wait(background), await.ErrPending)
		}
		require.NoError(rt, l.Stop())
		for l.State() != pe.Idle {
			_, err := e.Progress()
			require.NoError(rt, err)
		}
		require.Zero(rt, l.Allocated())
		require.NoError(rt, e.Close())
	})
}

// A task of another engine is refused, and not touched.
func TestTaskOfAnotherEngine(t *testing.T) {
	e, _ := running(t, 1)
	other, l := running(t, 1)
	var j *petest.Job
	do(t, other, func() {
		var err error
		j, err = l.Jobs.Alloc()
		require.NoError(t, err)
	})
	err := await.Task(background, e, func() (*petest.Job, error) { return j, nil }, nil)
	require.ErrorIs(t, err, await.ErrInvalid)
	do(t, other, func() { require.NoError(t, j.Free()) })
}

// A task that is in flight is refused, and stays its owner's: the owner's callback is called.
func TestTaskInFlight(t *testing.T) {
	e, l := running(t, 1)
	var j *petest.Job
	called := 0
	do(t, e, func() {
		var err error
		j, err = l.Jobs.Alloc()
		require.NoError(t, pe.SubmitOrFree(j, err, func(*petest.Job, error) { called++ }))
	})
	err := await.Task(background, e, func() (*petest.Job, error) { return j, nil }, nil)
	require.ErrorIs(t, err, pe.ErrInUse)
	do(t, e, func() { l.FinishWith(nil) })
	do(t, e, func() {
		require.Equal(t, 1, called)
		require.NoError(t, j.Free())
	})
}
