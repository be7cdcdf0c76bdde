package pe_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/pe"
)

// waitingUser allocates a job, and waits if there is none.
type waitingUser struct {
	d     *device
	w     *pe.Waiter
	job   *job
	err   error
	calls int // calls of its function
}

func (d *device) newWaitingUser() *waitingUser {
	c := &waitingUser{d: d}
	c.w = pe.NewWaiter(func() {
		c.calls++
		c.tryAlloc()
	})
	return c
}

func (c *waitingUser) tryAlloc() {
	c.job, c.err = c.d.jobs.Alloc()
	if c.err != nil && c.w.Wait(fmt.Errorf("wrapped: %w", c.err)) {
		c.err = nil
	}
}

func TestWaiterFirstComeFirstServed(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	var list []*waitingUser
	for range 5 {
		c := d.newWaitingUser()
		c.tryAlloc()
		list = append(list, c)
	}
	served := func() (n []int) {
		quiesce(t, e)
		for i, c := range list {
			if c.job != nil {
				n = append(n, i)
			}
		}
		return n
	}
	require.Equal(t, []int{0, 1}, served())
	list[2].w.Leave()
	list[2].w.Leave()
	require.NoError(t, d.jobs.Free(list[1].job))
	require.NoError(t, d.jobs.Free(list[0].job))
	require.Zero(t, list[3].calls, "called inside Free")
	require.Equal(t, []int{0, 1, 3, 4}, served())
	require.Zero(t, list[2].calls)
	require.Equal(t, 1, list[3].calls)
	require.NoError(t, d.jobs.Free(list[3].job))
	require.NoError(t, d.jobs.Free(list[4].job))
}

func TestWaiterHearsOfTheEnd(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	first, second := d.newWaitingUser(), d.newWaitingUser()
	first.tryAlloc()
	second.tryAlloc()
	require.NoError(t, d.Stop())
	quiesce(t, e)
	require.ErrorIs(t, second.err, pe.ErrBadState)
	require.NoError(t, d.jobs.Free(first.job))
	require.False(t, second.w.Wait(errors.New("some other error")))
	require.Equal(t, pe.Idle, d.State())
}

// A waiter waits for the pool that was exhausted last.
func TestWaiterChangesPools(t *testing.T) {
	e, first := connected(t, 1)
	second := newDevice(t, 1)
	require.NoError(t, e.Connect(second))
	hits := 0
	w := pe.NewWaiter(func() { hits++ })
	var jobs []*job
	for _, d := range []*device{first, second} {
		require.NoError(t, d.Start())
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		jobs = append(jobs, j)
		_, err = d.jobs.Alloc()
		require.True(t, w.Wait(err))
		require.True(t, w.Wait(err), "again, it keeps its place")
	}
	require.NoError(t, first.jobs.Free(jobs[0]))
	quiesce(t, e)
	require.Zero(t, hits)
	require.NoError(t, second.jobs.Free(jobs[1]))
	quiesce(t, e)
	require.Equal(t, 1, hits)
}

func TestWaiterPanicCostsNobodyTheTurn(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	a, b := d.newWaitingUser(), d.newWaitingUser()
	a.tryAlloc()
	b.tryAlloc()
	_, err := d.jobs.Alloc()
	bad := pe.NewWaiter(func() { panic("oops") })
	require.True(t, bad.Wait(err))
	c := d.newWaitingUser()
	c.tryAlloc()
	require.NoError(t, d.jobs.Free(a.job))
	require.NoError(t, d.jobs.Free(b.job))
	require.Panics(t, func() { _, _ = e.Progress() })
	quiesce(t, e)
	require.NotNil(t, c.job)
	require.NoError(t, d.jobs.Free(c.job))
}

func TestWaiterAllocatesNothing(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	a, b := d.newWaitingUser(), d.newWaitingUser()
	b.tryAlloc()
	w := pe.NewWaiter(func() {})
	_, err := d.jobs.Alloc()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		w.Wait(err)
		w.Leave()
	}))
	a.tryAlloc()
	require.NoError(t, d.jobs.Free(b.job))
	quiesce(t, e)
	require.NoError(t, d.jobs.Free(a.job))
}

// Whatever happens, no task lies idle while somebody waits for one, and those
// who wait get theirs in order.
func TestWaiterModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e, d := connected(t, rapid.IntRange(1, 3).Draw(rt, "tasks"))
		require.NoError(rt, d.Start())
		var queue, got []*waitingUser
		take := func() {
			for len(queue) > 0 && queue[0].job != nil {
				got = append(got, queue[0])
				queue = queue[1:]
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(*rapid.T) {
				// Not past those who wait.
				if d.jobs.Available() == 0 || len(queue) == 0 {
					c := d.newWaitingUser()
					c.tryAlloc()
					queue = append(queue, c)
					take()
				}
			},
			"leave": func(rt *rapid.T) {
				if len(queue) > 0 {
					i := rapid.IntRange(0, len(queue)-1).Draw(rt, "who")
					queue[i].w.Leave()
					queue = slices.Delete(queue, i, i+1)
				}
			},
			"free": func(rt *rapid.T) {
				if len(got) > 0 {
					i := rapid.IntRange(0, len(got)-1).Draw(rt, "whose")
					require.NoError(rt, d.jobs.Free(got[i].job))
					got = slices.Delete(got, i, i+1)
				}
			},
			"": func(rt *rapid.T) {
				quiesce(t, e)
				take()
				for _, c := range queue {
					require.Nil(rt, c.job, "out of turn")
					require.NoError(rt, c.err)
				}
				if len(queue) > 0 {
					require.Zero(rt, d.jobs.Available(), "a task lies idle while somebody waits")
				}
			},
		})
		require.NoError(rt, d.Stop())
		for _, c := range got {
			require.NoError(rt, d.jobs.Free(c.job))
		}
		quiesce(t, e)
		for _, c := range queue {
			require.ErrorIs(rt, c.err, pe.ErrBadState)
		}
	})
}

func TestWatch(t *testing.T) {
	e, d := connected(t, 1)
	var trace []string
	d.OnStateChange(func(_, next pe.State) { trace = append(trace, "program "+next.String()) })
	var stop func()
	stop = d.Watch(func(_, next pe.State) {
		trace = append(trace, "first "+next.String())
		stop()
	})
	defer d.Watch(func(_, next pe.State) { trace = append(trace, "second "+next.String()) })()
	require.NoError(t, d.Start())
	quiesce(t, e)
	require.NoError(t, d.Stop())
	quiesce(t, e)
	require.Equal(t, []string{
		"program Running", "first Running", "second Running",
		"program Stopping", "second Stopping",
		"program Idle", "second Idle",
	}, trace)
}

// A program's function that panics costs those who watch nothing.
func TestWatchAfterAPanic(t *testing.T) {
	e, d := connected(t, 1)
	d.OnStateChange(func(_, _ pe.State) { panic("oops") })
	var seen []pe.State
	defer d.Watch(func(_, next pe.State) { seen = append(seen, next) })()
	require.NoError(t, d.Start())
	require.PanicsWithValue(t, "oops", func() { _, _ = e.Progress() })
	quiesce(t, e)
	require.Equal(t, []pe.State{pe.Running}, seen)
	d.OnStateChange(nil)
	require.NoError(t, d.Stop())
	quiesce(t, e)
}

// Those who watch are told of what happens after they began.
func TestWatchBeginsNow(t *testing.T) {
	e, d := connected(t, 1)
	var early, late []pe.State
	d.OnStateChange(func(_, _ pe.State) {
		d.OnStateChange(nil)
		d.Watch(func(_, next pe.State) { early = append(early, next) })
	})
	require.NoError(t, d.Start())
	require.NoError(t, d.Stop())
	require.NoError(t, d.Start())
	d.Watch(func(_, next pe.State) { late = append(late, next) })
	quiesce(t, e)
	require.Empty(t, early)
	require.Empty(t, late)
	require.NoError(t, d.Stop())
	quiesce(t, e)
	require.Equal(t, []pe.State{pe.Stopping, pe.Idle}, early)
	require.Equal(t, early, late)
}
