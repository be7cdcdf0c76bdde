package await_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
)

var errFlushed = fmt.Errorf("job: %w", pe.ErrFlushed)

// job is a task of a lab.
type job struct {
	pe.Task
	lab *lab
	err error // what it is to end with
}

func (j *job) Submit(...pe.SubmitFlags) error {
	if err := j.lab.ctl.Begin(&j.Task, "submit a job"); err != nil {
		return err
	}
	j.lab.posted = append(j.lab.posted, j)
	return nil
}

func (j *job) Free() error {
	if err := j.lab.jobs.Free(j); err != nil {
		return err
	}
	j.err = nil
	return nil
}

// lab is a context whose jobs end on request, or at once.
type lab struct {
	*pe.Core
	ctl          *pe.Control
	jobs         *pe.Pool[job]
	posted       []*job
	done         []*job
	autoComplete bool // jobs end by themselves
	slow         bool // Start leaves it Starting
	startErr     error
}

type labBackend lab

func newLab(t testing.TB, n int) *lab {
	t.Helper()
	l := &lab{}
	l.Core, l.ctl = pe.NewCore("lab", (*labBackend)(l))
	var err error
	l.jobs, err = pe.NewPool(l.ctl, "jobs", n, func(j *job) *pe.Task { return &j.Task }, func(j *job) { j.lab = l }, nil)
	require.NoError(t, err)
	return l
}

// finish ends the oldest job.
func (l *lab) finish(err error) {
	j := l.posted[0]
	l.posted = l.posted[1:]
	j.err = err
	l.done = append(l.done, j)
	l.ctl.Wake()
}

func (b *labBackend) Start() (bool, error) { return !b.slow, b.startErr }

func (b *labBackend) Progress() int {
	n := 0
	for b.autoComplete && len(b.posted) > 0 {
		(*lab)(b).finish(nil)
	}
	for len(b.done) > 0 {
		j := b.done[0]
		b.done = b.done[1:]
		n++
		b.ctl.End(&j.Task)
		if j.err == nil {
			pe.Done(j)
		} else {
			pe.Failed(j, j.err)
		}
	}
	if b.State() == pe.Stopping && b.InFlight() == 0 {
		b.ctl.Stopped()
	}
	return n
}

func (b *labBackend) Arm() bool {
	return len(b.done) == 0 && (!b.autoComplete || len(b.posted) == 0) && (b.State() != pe.Stopping || b.InFlight() > 0)
}

func (b *labBackend) Stop() {
	for len(b.posted) > 0 {
		(*lab)(b).finish(errFlushed)
	}
	if b.InFlight() == 0 {
		b.ctl.Stopped()
	}
}

func (b *labBackend) Idle() {}

// drive has an engine driven until the test ends.
func drive(t testing.TB, contexts ...pe.Context) *pe.Engine {
	t.Helper()
	e := pe.New(pe.Config{})
	for _, c := range contexts {
		require.NoError(t, e.Connect(c))
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- await.Run(ctx, e) }()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, e.Close())
	})
	return e
}

// do runs f on the engine's goroutine.
func do(t testing.TB, e *pe.Engine, f func()) {
	t.Helper()
	require.NoError(t, await.Func(context.Background(), e, func() error {
		f()
		return nil
	}))
}

// running makes a lab that runs.
func running(t testing.TB, n int) (*pe.Engine, *lab) {
	t.Helper()
	l := newLab(t, n)
	e := drive(t, l)
	require.NoError(t, await.Start(context.Background(), l))
	return e, l
}
