package pe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// loopback is a context whose tasks complete in the next Progress.
type loopback struct {
	*pe.Core
	ctl        backend.Control
	tasks      *pe.Pool[echo]
	done       []*echo
	onComplete func(*echo)
}

type echo struct{ pe.Task }

type loopbackBackend loopback

func (b *loopbackBackend) Start() (bool, error) { return true, nil }
func (b *loopbackBackend) Arm() bool            { return len(b.done) == 0 }
func (b *loopbackBackend) Stop()                { b.ctl.Stopped() }
func (b *loopbackBackend) Idle()                {}

func (b *loopbackBackend) Progress() int {
	n := len(b.done)
	for i := range n {
		b.ctl.End(&b.done[i].Task)
		b.onComplete(b.done[i])
	}
	b.done = b.done[:copy(b.done, b.done[n:])]
	return n
}

func (l *loopback) submit(t *echo) error {
	if err := l.ctl.Begin(&t.Task, "submit"); err != nil {
		return err
	}
	l.done = append(l.done, t)
	return nil
}

func newLoopback(t testing.TB, tasks int) (*pe.Engine, *loopback) {
	t.Helper()
	l := &loopback{done: make([]*echo, 0, 2*tasks)}
	l.Core, l.ctl = backend.New("loopback", (*loopbackBackend)(l))
	var err error
	l.tasks, err = backend.NewPool(l.ctl, "echoes", tasks, func(e *echo) *pe.Task { return &e.Task }, nil, nil)
	require.NoError(t, err)
	e := newEngine(t, pe.Config{})
	require.NoError(t, e.Connect(l))
	require.NoError(t, l.Start())
	quiesce(t, e)
	return e, l
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	e, l := newLoopback(t, 16)
	l.onComplete = func(t *echo) { _ = l.tasks.Free(t) }
	paths := map[string]func(){
		"alloc, submit, complete, free": func() {
			for range 16 {
				task, _ := l.tasks.Alloc()
				_ = l.submit(task)
			}
			_, _ = e.Progress()
		},
		"nothing to do": func() { _, _ = e.Progress() },
		"wake":          func() { l.ctl.Wake(); _, _ = e.Progress() },
		"exhausted": func() {
			var out [16]*echo
			for i := range out {
				out[i], _ = l.tasks.Alloc()
			}
			_, _ = l.tasks.Alloc()
			for _, task := range out {
				_ = l.tasks.Free(task)
			}
		},
	}
	for name, path := range paths {
		assert.Zero(t, testing.AllocsPerRun(1000, path), name)
	}
	assert.Equal(t, 16, l.tasks.Available())

	if _, err := e.NotificationFD(); err == nil {
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			_ = e.Arm()
			l.ctl.Wake()
			_ = e.Clear()
			_, _ = e.Progress()
		}), "notification")
	}
}

func BenchmarkProgressIdle(b *testing.B) {
	for _, contexts := range []int{0, 1, 8, 64} {
		b.Run(fmt.Sprintf("contexts=%d", contexts), func(b *testing.B) {
			e := newEngine(b, pe.Config{})
			for range contexts {
				l := &loopback{}
				l.Core, l.ctl = backend.New("loopback", (*loopbackBackend)(l))
				require.NoError(b, e.Connect(l))
				require.NoError(b, l.Start())
			}
			quiesce(b, e)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = e.Progress()
			}
		})
	}
}

func BenchmarkSubmitComplete(b *testing.B) {
	for _, batch := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			e, l := newLoopback(b, batch)
			l.onComplete = func(t *echo) { _ = l.tasks.Free(t) }
			b.ReportAllocs()
			for i := 0; i < b.N; i += batch {
				for range batch {
					task, _ := l.tasks.Alloc()
					_ = l.submit(task)
				}
				_, _ = e.Progress()
			}
		})
	}
}

func BenchmarkWake(b *testing.B) {
	_, l := newLoopback(b, 1)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			l.ctl.Wake()
		}
	})
}

// BenchmarkRoundTripThroughDo is the time from Do on another goroutine until the
// function has run, with an engine that sleeps in Run and with one that spins.
func BenchmarkRoundTripThroughDo(b *testing.B) {
	for name, spin := range map[string]pe.Config{"sleeping": {Spin: -1}, "spinning": {}} {
		b.Run(name, func(b *testing.B) {
			e := newEngine(b, spin)
			l := &loopback{}
			l.Core, l.ctl = backend.New("loopback", (*loopbackBackend)(l))
			require.NoError(b, e.Connect(l))
			require.NoError(b, l.Start())
			ended := make(chan error)
			go func() { ended <- e.Run(b.Context()) }()
			ran := make(chan struct{})
			f := func() { ran <- struct{}{} }
			b.ReportAllocs()
			for b.Loop() {
				_ = e.Do(f)
				<-ran
			}
			require.NoError(b, e.Do(func() { _ = l.Stop() }))
			require.NoError(b, <-ended)
		})
	}
}
