package pe_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// model is what a device on an engine should look like.
type model struct {
	d         *device
	state     pe.State
	log, seen changes // what should be reported, what was
	free      []*job  // allocated, not in flight
	inFlight  map[*job]bool
	submits   int
	callbacks int
	failed    error
}

func (m *model) enter(next pe.State) {
	m.log = append(m.log, [2]pe.State{m.state, next})
	m.state = next
}

// settle predicts the step to Idle.
func (m *model) settle() {
	if m.state == pe.Stopping && m.d.finished && m.d.Allocated() == 0 {
		m.enter(pe.Idle)
	}
}

func (m *model) check(t *rapid.T) {
	m.settle()
	require.Equal(t, m.state, m.d.State())
	require.Equal(t, len(m.inFlight), m.d.Core.InFlight())
	require.Equal(t, len(m.inFlight)+len(m.free), m.d.Allocated())
	require.Equal(t, m.d.jobs.Cap()-m.d.Allocated(), m.d.jobs.Available())
	require.Equal(t, m.submits, m.callbacks+len(m.inFlight), "each submission has one callback")
	require.Equal(t, m.failed, m.d.Err())
	require.Equal(t, m.state != pe.Idle, m.d.acquired)
	require.False(t, m.d.nested)
	for j := range m.inFlight {
		require.True(t, j.InFlight())
	}
	require.LessOrEqual(t, len(m.seen), len(m.log))
	require.True(t, slices.Equal(m.log[:len(m.seen)], m.seen), "reported %v of %v", m.seen, m.log)
}

func (m *model) submit(t *rapid.T, j *job, flags pe.SubmitFlags) {
	err := m.d.submit(j, flags)
	if m.state != pe.Running {
		require.ErrorIs(t, err, pe.ErrBadState)
		return
	}
	require.NoError(t, err)
	m.submits++
	m.inFlight[j] = true
	m.free = slices.DeleteFunc(m.free, func(o *job) bool { return o == j })
}

func (m *model) giveBack(t *rapid.T, j *job) {
	require.NoError(t, m.d.jobs.Free(j))
	require.ErrorIs(t, m.d.jobs.Free(j), pe.ErrFreed)
	m.free = slices.DeleteFunc(m.free, func(o *job) bool { return o == j })
}

func (m *model) stop(t *rapid.T) {
	require.NoError(t, m.d.Stop())
	if m.state == pe.Starting || m.state == pe.Running {
		m.enter(pe.Stopping)
	}
}

func (m *model) fail(err error) {
	m.d.Fail(err)
	active := m.state == pe.Starting || m.state == pe.Running
	if m.failed == nil && (active || !errors.Is(err, pe.ErrFlushed)) {
		m.failed = err
	}
	if active {
		m.enter(pe.Stopping)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := pe.New(pe.Config{})
		var all []*model
		for range rapid.IntRange(1, 3).Draw(t, "contexts") {
			d := &device{}
			d.Core, d.ctl = backend.New("dev", (*deviceBackend)(d))
			d.budget = rapid.IntRange(0, 2).Draw(t, "budget")
			var err error
			d.jobs, err = backend.NewPool(d.ctl, "jobs", rapid.IntRange(1, 5).Draw(t, "tasks"), jobTask, nil, d.drop)
			require.NoError(t, err)
			m := &model{d: d, inFlight: map[*job]bool{}}
			d.OnStateChange(func(prev, next pe.State) { m.seen = append(m.seen, [2]pe.State{prev, next}) })
			require.NoError(t, e.Connect(d))
			all = append(all, m)
		}
		pick := func(t *rapid.T) *model { return all[rapid.IntRange(0, len(all)-1).Draw(t, "context")] }
		pickFree := func(t *rapid.T, m *model) *job {
			if len(m.free) == 0 {
				t.Skip("no task to use")
			}
			return m.free[rapid.IntRange(0, len(m.free)-1).Draw(t, "task")]
		}
		progress := func(t *rapid.T) int {
			n, err := e.Progress()
			require.NoError(t, err)
			return n
		}

		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				active, flying := 0, 0
				for _, m := range all {
					m.check(t)
					flying += len(m.inFlight)
					if m.state != pe.Idle {
						active++
					}
				}
				require.Equal(t, flying, e.InFlight())
				require.Equal(t, active, e.Active())
			},
			"start": func(t *rapid.T) {
				m := pick(t)
				if m.state != pe.Idle {
					require.ErrorIs(t, m.d.Start(), pe.ErrBadState)
					return
				}
				m.d.slowStart = rapid.Bool().Draw(t, "slow start")
				m.d.slowStop = rapid.Bool().Draw(t, "slow stop")
				require.NoError(t, m.d.Start())
				m.failed = nil
				if m.d.slowStart {
					m.enter(pe.Starting)
				} else {
					m.enter(pe.Running)
				}
			},
			"started": func(t *rapid.T) {
				m := pick(t)
				m.d.ctl.Started()
				if m.state == pe.Starting {
					m.enter(pe.Running)
				}
			},
			"stop": func(t *rapid.T) { pick(t).stop(t) },
			"fail": func(t *rapid.T) {
				pick(t).fail(rapid.SampledFrom([]error{errBroken, errFlushed}).Draw(t, "error"))
			},
			"stopped": func(t *rapid.T) {
				m := pick(t)
				if m.state == pe.Stopping && len(m.inFlight) > 0 {
					t.Skip("the device still works")
				}
				m.d.finished = m.d.finished || m.state == pe.Stopping
				m.d.ctl.Stopped()
			},
			"alloc": func(t *rapid.T) {
				m := pick(t)
				j, err := m.d.jobs.Alloc()
				switch {
				case m.state != pe.Running:
					require.ErrorIs(t, err, pe.ErrBadState)
				case len(m.free)+len(m.inFlight) == m.d.jobs.Cap():
					require.ErrorIs(t, err, pe.ErrExhausted)
				default:
					require.NoError(t, err)
					m.free = append(m.free, j)
				}
			},
			"submit": func(t *rapid.T) {
				m := pick(t)
				j := pickFree(t, m)
				then := rapid.SampledFrom([]string{"keep", "free", "again", "stop", "fail"}).Draw(t, "then")
				j.done = func(j *job, err error) {
					delete(m.inFlight, j)
					m.free = append(m.free, j)
					m.callbacks++
					switch {
					case then == "again" && m.state == pe.Running:
						m.submit(t, j, 0)
					case then == "free":
						m.giveBack(t, j)
					case then == "stop":
						m.stop(t)
					case then == "fail":
						m.fail(errBroken)
					}
				}
				m.submit(t, j, rapid.SampledFrom([]pe.SubmitFlags{0, pe.Aggregate}).Draw(t, "flags"))
			},
			"submit twice": func(t *rapid.T) {
				m := pick(t)
				for j := range m.inFlight {
					require.ErrorIs(t, m.d.ctl.Begin(&j.Task, "submit"), pe.ErrInUse)
				}
			},
			"complete": func(t *rapid.T) {
				m := pick(t)
				if n := len(m.d.posted); n > 0 {
					m.d.complete(rapid.IntRange(0, n-1).Draw(t, "which"), nil)
				}
			},
			"free": func(t *rapid.T) {
				m := pick(t)
				m.giveBack(t, pickFree(t, m))
			},
			"close in a callback": func(t *rapid.T) {
				m := pick(t)
				if m.state == pe.Idle {
					t.Skip("this is legal")
				}
				require.NoError(t, e.Do(func() {
					if m.d.State() != pe.Idle {
						require.ErrorIs(t, m.d.Close(), pe.ErrReentrant)
					}
					require.ErrorIs(t, e.Close(), pe.ErrReentrant)
				}))
			},
			"progress": func(t *rapid.T) { progress(t) },
		})

		for _, m := range all {
			m.stop(t)
			m.settle()
			m.d.slowStop = false
		}
		for progress(t) > 0 {
			for _, m := range all {
				m.settle()
			}
		}
		closing := rapid.SampledFrom([]string{"", "a context", "the engine"}).Draw(t, "close")
		if closing == "" {
			for _, m := range all {
				for len(m.free) > 0 {
					m.giveBack(t, m.free[0])
				}
			}
		}
		for progress(t) > 0 {
		}
		switch closing {
		case "a context":
			for _, m := range all {
				require.NoError(t, m.d.Close())
			}
		case "the engine":
			require.NoError(t, e.Close())
		}
		for _, m := range all {
			require.ElementsMatch(t, m.free, m.d.dropped, "tasks never freed are taken back")
			for _, j := range m.free {
				require.ErrorIs(t, m.d.jobs.Free(j), pe.ErrFreed)
			}
			m.free = nil
		}
		for _, m := range all {
			m.check(t)
			require.Equal(t, pe.Idle, m.d.State())
			require.Equal(t, m.submits, m.callbacks)
			require.True(t, slices.Equal(m.log, m.seen), "reported %v of %v", m.seen, m.log)
		}
		require.NoError(t, e.Close())
	})
}

// Stop comes from another goroutine at a random moment, while others complete
// tasks that submit themselves again.
func TestStopAtAnyMoment(t *testing.T) {
	const rounds, tasks = 3000, 16
	e, d := newEngine(t, pe.Config{Spin: -1}), newDevice(t, tasks)
	require.NoError(t, e.Connect(d))
	work := make(chan *job, tasks)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for j := range work {
				d.push(j, nil)
			}
		})
	}
	submits, callbacks := 0, 0
	post := func(j *job) error {
		if err := d.submit(j, 0); err != nil {
			return err
		}
		submits++
		if submits%3 == 0 { // a third stays at the device until it is flushed
			return nil
		}
		d.posted = slices.DeleteFunc(d.posted, func(o *job) bool { return o == j })
		work <- j
		return nil
	}
	d.OnStateChange(func(_, next pe.State) {
		for next == pe.Running && d.State() == pe.Running && d.jobs.Available() > 0 {
			j, err := d.jobs.Alloc()
			require.NoError(t, err)
			j.done = func(j *job, err error) {
				callbacks++
				if err == nil && d.State() == pe.Running {
					require.NoError(t, post(j))
					return
				}
				require.ErrorIs(t, post(j), pe.ErrBadState)
				require.NoError(t, d.jobs.Free(j))
			}
			require.NoError(t, post(j))
		}
	})
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range rounds {
		require.NoError(t, d.Start())
		ctx, cancel := context.WithCancel(context.Background())
		delay := rng.IntN(200)
		go func() {
			for range delay {
				d.ctl.Wake()
			}
			if round%2 == 0 {
				cancel()
				return
			}
			if delay%2 == 0 {
				_ = e.Do(func() { _ = d.Stop() })
			} else {
				_ = e.Dispatch(func() { _ = d.Stop() })
			}
		}()
		err := e.Run(ctx)
		if round%2 == 0 {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err)
		}
		cancel()
		require.Equal(t, pe.Idle, d.State())
		require.Equal(t, submits, callbacks)
		require.Zero(t, d.Allocated())
		require.Equal(t, tasks, d.jobs.Available())
		require.False(t, d.nested)
	}
	close(work)
	workers.Wait()
	require.NoError(t, e.Close())
}
