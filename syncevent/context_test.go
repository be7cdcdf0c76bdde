package syncevent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// tasks is a context on an engine, with a pool of each kind.
type tasks struct {
	t       *testing.T
	engine  *pe.Engine
	ctx     *Context
	gets    *Pool
	sets    *Pool
	adds    *Pool
	waits   *Pool
	records []string // callbacks, in order
	errs    []error
	onWait  func(*Task)
}

func newTasks(t *testing.T, n int) *tasks {
	t.Helper()
	s := &tasks{t: t}
	var err error
	s.engine = pe.New(pe.Config{})
	s.ctx, err = NewContext(ContextConfig{})
	require.NoError(t, err)
	s.gets, err = s.ctx.Pool(n, func(g *Task) { s.record("get %d", g.Original()) }, func(g *Task, err error) { s.fail(g.Operation(), err) })
	require.NoError(t, err)
	s.sets, err = s.ctx.Pool(n, func(a *Task) { s.record("set %d", a.Value()) }, func(a *Task, err error) { s.fail(a.Operation(), err) })
	require.NoError(t, err)
	s.adds, err = s.ctx.Pool(n, func(a *Task) { s.record("add %d to %d", a.Value(), a.Original()) }, func(a *Task, err error) { s.fail(a.Operation(), err) })
	require.NoError(t, err)
	s.waits, err = s.ctx.Pool(n, func(w *Task) {
		s.record("wait %d", w.Original())
		if s.onWait != nil {
			s.onWait(w)
		}
	}, func(w *Task, err error) { s.fail(w.Operation(), err) })
	require.NoError(t, err)
	require.NoError(t, s.engine.Connect(s.ctx))
	return s
}

// run starts the context; the test must have freed its tasks when it ends.
func (s *tasks) run() *tasks {
	s.t.Helper()
	require.NoError(s.t, s.ctx.Start())
	require.Equal(s.t, pe.Running, s.ctx.State())
	s.t.Cleanup(func() {
		require.NoError(s.t, s.ctx.Stop())
		s.progress()
		require.Equal(s.t, pe.Idle, s.ctx.State(), "%d tasks were not freed", s.ctx.Allocated())
		require.NoError(s.t, s.ctx.Close())
		require.NoError(s.t, s.engine.Close())
	})
	return s
}

func (s *tasks) record(format string, args ...any) {
	s.records = append(s.records, fmt.Sprintf(format, args...))
}

func (s *tasks) fail(op Operation, err error) {
	s.record("%v failed", op)
	s.errs = append(s.errs, err)
}

// progress drives the engine until it has nothing to do, and returns what the
// callbacks recorded.
func (s *tasks) progress() []string {
	s.t.Helper()
	for {
		n, err := s.engine.Progress()
		require.NoError(s.t, err)
		if n == 0 {
			break
		}
	}
	records := s.records
	s.records = nil
	return records
}

// must is for allocations that the test does not expect to fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type submitter interface {
	Submit(...pe.SubmitFlags) error
	Free() error
}

func (s *tasks) submit(list ...submitter) {
	s.t.Helper()
	for _, t := range list {
		require.NoError(s.t, t.Submit())
	}
}

func (s *tasks) free(list ...submitter) {
	s.t.Helper()
	for _, t := range list {
		require.NoError(s.t, t.Free())
	}
}

func TestTasks(t *testing.T) {
	e, other := open(t, nil, Config{}), open(t, nil, Config{})
	s := newTasks(t, 1).run()
	get, set, add := must(s.gets.Get(e)), must(s.sets.Set(e, 5)), must(s.adds.Add(e, 3))
	wait := must(s.waits.Wait(e, Greater(7)))
	s.submit(wait, add, set, get)
	assert.Equal(t, []string{"add 3 to 0", "set 5", "get 5"}, s.progress(), "in the order of submission")
	assert.True(t, wait.InFlight())
	assert.False(t, set.InFlight())

	s.submit(add)
	assert.Equal(t, []string{"add 3 to 5", "wait 8"}, s.progress())
	assert.False(t, wait.InFlight())
	s.submit(wait)
	assert.Equal(t, []string{"wait 8"}, s.progress(), "a condition that holds already")

	require.NoError(t, set.SetValue(9))
	require.NoError(t, add.SetValue(all))
	require.NoError(t, wait.SetCondition(Equal(8).Masked(0xff)))
	require.NoError(t, get.SetEvent(other))
	s.submit(set, wait, add, get)
	assert.Equal(t, []string{"set 9", "add 18446744073709551615 to 9", "get 0", "wait 8"}, s.progress())
	require.NoError(t, wait.SetCondition(NotEqual(8)))
	s.submit(wait)
	assert.Empty(t, s.progress())
	require.NoError(t, e.Set(1))
	assert.Equal(t, []string{"wait 1"}, s.progress())
	require.NoError(t, wait.SetCondition(Greater(1)))
	require.NoError(t, wait.SetEvent(other))
	require.NoError(t, other.Set(2))
	s.submit(wait)
	assert.Equal(t, []string{"wait 2"}, s.progress())
	assert.Same(t, other, wait.Event())

	wait.SetUserData("mine")
	assert.Equal(t, "mine", wait.UserData())
	s.free(get, set, add, wait)
	wait = must(s.waits.Wait(e, NotEqual(1)))
	assert.Nil(t, wait.UserData())
	require.NoError(t, wait.Submit())
	require.NoError(t, e.Set(3))
	assert.Equal(t, []string{"wait 3"}, s.progress())
	s.free(wait)
}

func TestTasksHoldTheirEvents(t *testing.T) {
	e, other := must(New(nil, Config{})), must(New(nil, Config{}))
	s := newTasks(t, 2).run()
	get := must(s.gets.Get(e))
	require.ErrorIs(t, e.Close(), ErrInUse)
	require.NoError(t, get.SetEvent(other))
	require.NoError(t, e.Close())
	require.ErrorIs(t, get.SetEvent(e), ErrClosed)
	assert.Same(t, other, get.Event(), "an event that is refused changes nothing")
	require.ErrorIs(t, other.Close(), ErrInUse)
	s.free(get)
	require.NoError(t, other.Close())
	_, err := s.waits.Wait(other, Equal(1))
	require.ErrorIs(t, err, ErrClosed)
	assert.Equal(t, 2, s.waits.Available())
	assert.Equal(t, 2, s.waits.Cap())
}

func TestTasksMisused(t *testing.T) {
	dev := openSoft(t)
	e := open(t, dev, Config{Publishers: PublishRemote, Name: "door"})
	mine := open(t, nil, Config{})
	imported := must(Import(dev, must(e.Export())))
	s := newTasks(t, 2)

	_, err := s.gets.Get(mine)
	require.ErrorIs(t, err, pe.ErrBadState)
	_, err = s.ctx.Pool(0, func(*Task) {}, func(*Task, error) {})
	require.ErrorIs(t, err, pe.ErrInvalid)
	_, err = s.ctx.Pool(1, nil, func(*Task, error) {})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = s.ctx.Pool(1, func(*Task) {}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = s.ctx.Pool(-1, func(*Task) {}, func(*Task, error) {})
	require.ErrorIs(t, err, pe.ErrInvalid)

	s.run()
	_, err = s.ctx.Pool(1, func(*Task) {}, func(*Task, error) {})
	require.ErrorIs(t, err, pe.ErrBadState)
	for name, c := range map[string]struct {
		alloc func(*Event) error
		kept  error // for an event that only peers change
	}{
		"get":       {func(e *Event) error { _, err := s.gets.Get(e); return err }, nil},
		"set":       {func(e *Event) error { _, err := s.sets.Set(e, 1); return err }, ErrPublisher},
		"add":       {func(e *Event) error { _, err := s.adds.Add(e, 1); return err }, ErrPublisher},
		"equal":     {func(e *Event) error { _, err := s.waits.Wait(e, Equal(1)); return err }, nil},
		"not equal": {func(e *Event) error { _, err := s.waits.Wait(e, NotEqual(1)); return err }, nil},
		"greater":   {func(e *Event) error { _, err := s.waits.Wait(e, Greater(1)); return err }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, c.alloc(nil), ErrInvalid)
			err := c.alloc(imported)
			require.ErrorIs(t, err, ErrRemote)
			assert.ErrorContains(t, err, "package rdma")
			if c.kept != nil {
				err := c.alloc(e)
				require.ErrorIs(t, err, c.kept)
				assert.ErrorContains(t, err, `sync event "door"`)
			}
		})
	}
	_, err = s.waits.Wait(mine, Equal(1).Masked(0))
	require.ErrorIs(t, err, ErrInvalid)
	_, err = s.waits.Wait(mine, Greater(7).Masked(7))
	require.ErrorIs(t, err, ErrInvalid)
	require.Zero(t, s.ctx.Allocated(), "what could not be allocated is back")

	wait, set, add := must(s.waits.Wait(mine, Equal(7))), must(s.sets.Set(mine, 7)), must(s.adds.Add(mine, 0))
	require.ErrorIs(t, wait.SetCondition(Equal(1).Masked(0)), ErrInvalid)
	require.ErrorIs(t, set.SetEvent(e), ErrPublisher)
	s.submit(wait, set, add)
	for _, err := range []error{
		wait.Submit(), wait.Free(), wait.SetCondition(Equal(1)), wait.SetCondition(NotEqual(1)), wait.SetCondition(Greater(1)), wait.SetEvent(mine),
		set.Submit(), set.Free(), set.SetValue(1), set.SetEvent(mine), add.Free(), add.SetValue(1),
	} {
		require.ErrorIs(t, err, pe.ErrInUse)
	}
	assert.Equal(t, []string{"set 7", "add 0 to 7", "wait 7"}, s.progress())
	s.free(wait, set, add)
	for _, err := range []error{
		wait.SetCondition(Equal(1)), wait.SetCondition(NotEqual(1)), wait.SetCondition(Greater(1)), wait.SetEvent(mine),
		set.SetValue(1), set.SetEvent(mine), add.SetValue(1),
	} {
		require.ErrorIs(t, err, pe.ErrFreed)
	}
	require.ErrorIs(t, wait.Free(), pe.ErrFreed)
	require.ErrorIs(t, wait.Submit(), pe.ErrFreed)
	assert.Equal(t, "operation 9", Operation(9).String())
}

func TestStopFlushes(t *testing.T) {
	e := open(t, nil, Config{Name: "door"})
	s := newTasks(t, 3)
	for round := range 2 {
		require.NoError(t, s.ctx.Start(), "started again")
		require.NoError(t, e.Set(0))
		over, asleep, never := must(s.waits.Wait(e, Equal(0))), must(s.waits.Wait(e, Equal(1))), must(s.waits.Wait(e, Equal(2)))
		s.submit(over, asleep)
		set := must(s.sets.Set(e, 1))
		s.submit(set)
		require.NoError(t, s.ctx.Stop())
		require.ErrorIs(t, never.Submit(), pe.ErrBadState)
		assert.Equal(t, []string{"set failed", "wait 0", "wait failed"}, s.progress(), "round %d", round)
		assert.Zero(t, get(t, e), "what was flushed was not done")
		for _, err := range s.errs {
			require.ErrorIs(t, err, ErrFlushed)
			var failed *TaskError
			require.ErrorAs(t, err, &failed)
			assert.Same(t, e, failed.Event)
			assert.ErrorContains(t, err, `of sync event "door": flushed`)
		}
		s.errs = nil
		assert.Equal(t, pe.Stopping, s.ctx.State())
		assert.Zero(t, e.sleepers.Load())
		s.free(over, asleep, never, set)
		assert.Equal(t, pe.Idle, s.ctx.State())
	}
	require.NoError(t, s.ctx.Start())
	for range 3 {
		s.submit(must(s.waits.Wait(e, Equal(0))))
	}
	set := must(s.sets.Set(e, 0))
	s.onWait = func(w *Task) { s.free(w) }
	s.submit(set)
	assert.Equal(t, []string{"set 0", "wait 0", "wait 0", "wait 0"}, s.progress(), "nothing is left of the stop")
	s.free(set)
	require.NoError(t, s.ctx.Stop())
	assert.Equal(t, pe.Idle, s.ctx.State(), "with nothing in flight")
	s.progress()
	require.NoError(t, s.engine.Close())
}

func TestStopFlushesAllPools(t *testing.T) {
	e := open(t, nil, Config{})
	s := newTasks(t, 1)
	second := must(s.ctx.Pool(1, func(*Task) {}, func(w *Task, err error) { s.fail(w.Operation(), err) }))
	require.NoError(t, s.ctx.Start())
	a, b := must(s.waits.Wait(e, Equal(1))), must(second.Wait(e, Equal(1)))
	s.submit(a, b)
	require.NoError(t, s.ctx.Stop())
	assert.Equal(t, []string{"wait failed", "wait failed"}, s.progress())
	s.free(a, b)
	s.progress()
	require.NoError(t, s.engine.Close())
}

func TestStopInACallback(t *testing.T) {
	e := open(t, nil, Config{})
	s := newTasks(t, 4)
	s.onWait = func(w *Task) {
		assert.NoError(t, w.Free())
		assert.NoError(t, s.ctx.Stop())
	}
	require.NoError(t, s.ctx.Start())
	first, second := must(s.waits.Wait(e, Greater(0))), must(s.waits.Wait(e, Greater(1)))
	s.submit(first, second)
	time.AfterFunc(5*time.Millisecond, func() { assert.NoError(t, e.Set(1)) })
	for s.ctx.State() == pe.Running {
		s.progress()
	}
	s.progress()
	assert.Len(t, s.errs, 1)
	s.free(second)
	assert.Equal(t, pe.Idle, s.ctx.State())
	require.NoError(t, s.engine.Close())
}

// A callback that panics costs no other task.
func TestPanicInACallback(t *testing.T) {
	e := open(t, nil, Config{})
	s := newTasks(t, 2).run()
	s.onWait = func(*Task) { panic("on purpose") }
	first, second, set := must(s.waits.Wait(e, Equal(0))), must(s.waits.Wait(e, Equal(0))), must(s.sets.Set(e, 1))
	s.submit(first, second)
	require.Panics(t, func() { s.progress() })
	s.onWait = nil
	s.submit(set)
	assert.Equal(t, []string{"wait 0", "set 1", "wait 0"}, s.progress())
	s.free(first, second, set)
}

// Waits that end while the engine sleeps wake it, whoever ends them.
func TestEngineSleeps(t *testing.T) {
	e := open(t, nil, Config{})
	s := newTasks(t, 1)
	rounds := uint64(0)
	s.onWait = func(w *Task) {
		if rounds = w.Original(); rounds == 200 {
			assert.NoError(t, w.Free())
			assert.NoError(t, s.ctx.Stop())
			return
		}
		assert.NoError(t, w.SetCondition(Greater(w.Original())))
		assert.NoError(t, w.Submit())
	}
	require.NoError(t, s.ctx.Start())
	s.submit(must(s.waits.Wait(e, Greater(0))))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			_, err := e.Add(1)
			assert.NoError(t, err)
			time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
		}
	})
	require.NoError(t, s.engine.Run(patience(t)))
	wg.Wait()
	assert.Equal(t, uint64(200), rounds)
	require.NoError(t, s.engine.Close())
}

// Every task that was submitted comes back once, whenever the context stops.
func TestStopAtAnyTime(t *testing.T) {
	for range 100 {
		e := must(New(nil, Config{}))
		engine := pe.New(pe.Config{})
		c := must(NewContext(ContextConfig{}))
		back := map[*Task]int{}
		pool := must(c.Pool(50, func(w *Task) {
			back[w]++
			assert.Greater(t, w.Original(), uint64(0))
			assert.NoError(t, w.Free())
		}, func(w *Task, err error) {
			back[w]++
			assert.ErrorIs(t, err, ErrFlushed)
			assert.NoError(t, w.Free())
		}))
		require.NoError(t, engine.Connect(c))
		require.NoError(t, c.Start())
		for i := range uint64(50) {
			require.NoError(t, must(pool.Wait(e, Greater(i))).Submit())
		}
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() {
			for range 50 {
				_, err := e.Add(1)
				assert.NoError(t, err)
			}
		})
		wg.Go(func() {
			time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
			cancel()
		})
		require.ErrorIs(t, engine.Run(ctx), context.Canceled)
		wg.Wait()
		require.Len(t, back, 50)
		for _, n := range back {
			require.Equal(t, 1, n)
		}
		require.NoError(t, e.Close())
		require.NoError(t, engine.Close())
	}
}

func TestTasksDoNotAllocate(t *testing.T) {
	e := open(t, nil, Config{})
	engine := pe.New(pe.Config{})
	c := must(NewContext(ContextConfig{}))
	done := 0
	waits := must(c.Pool(2, func(w *Task) { done++; _ = w.Free() }, func(*Task, error) {}))
	adds := must(c.Pool(2, func(a *Task) { done++; _ = a.Free() }, func(*Task, error) {}))
	require.NoError(t, engine.Connect(c))
	require.NoError(t, c.Start())
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		w, _ := waits.Wait(e, Greater(e.load()))
		a, _ := adds.Add(e, 1)
		_, _ = w.Submit(), a.Submit()
		for done = 0; done < 2; {
			_, _ = engine.Progress()
		}
	}))
	require.NoError(t, c.Stop())
	_, err := engine.Progress()
	require.NoError(t, err)
	require.NoError(t, engine.Close())
}

// What the end of the context cuts off says why it has ended.
func TestFlushedTasksSayWhy(t *testing.T) {
	s := newTasks(t, 1).run()
	ev, err := New(nil, Config{})
	require.NoError(t, err)
	wait, err := s.waits.Wait(ev, Equal(1).Masked(1))
	require.NoError(t, err)
	require.NoError(t, wait.Submit())
	boom := errors.New("boom")
	s.ctx.Fail(boom)
	for len(s.errs) == 0 {
		_, err := s.engine.Progress()
		require.NoError(t, err)
	}
	require.ErrorIs(t, s.errs[0], ErrFlushed)
	require.ErrorIs(t, s.errs[0], boom)
	require.ErrorIs(t, wait.Submit(), boom)
	require.NoError(t, wait.Free())
	require.NoError(t, ev.Close())
}
