// Package petest has a context for tests of packages above pe: a Lab, whose tasks end when the
// test says so.
package petest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// ErrFlushed is the error of jobs that are in flight when the lab stops.
var ErrFlushed = fmt.Errorf("job: %w", pe.ErrFlushed)

// Job is a task of a Lab.
type Job struct {
	pe.Task
	Err error // what it is to end with
	lab *Lab
}

// Submit implements pe.Submittable.
func (j *Job) Submit(...pe.SubmitFlags) error {
	if j.lab.Refuse != nil {
		return j.lab.Refuse
	}
	if err := j.lab.Control.Begin(&j.Task, "submit a job"); err != nil {
		return err
	}
	j.lab.Posted = append(j.lab.Posted, j)
	return nil
}

// Free implements pe.Submittable.
func (j *Job) Free() error {
	if err := j.lab.Jobs.Free(j); err != nil {
		return err
	}
	j.Err = nil
	return nil
}

// Lab is a context whose jobs end on request, or at once. It belongs to the goroutine that drives
// its engine.
type Lab struct {
	*pe.Core
	Control backend.Control
	Jobs    *pe.Pool[Job]
	Posted  []*Job // in flight
	// Auto: jobs end by themselves. Slow: Start leaves the lab Starting. StartErr and Refuse are
	// what Start, and Submit of a job, fail with.
	Auto, Slow       bool
	StartErr, Refuse error

	done []*Job
}

// NewLab makes a lab with a pool of n jobs.
func NewLab(t testing.TB, n int) *Lab {
	t.Helper()
	l := &Lab{}
	l.Core, l.Control = backend.New("lab", (*asBackend)(l))
	var err error
	l.Jobs, err = backend.NewPool(l.Control, "jobs", n, func(j *Job) *pe.Task { return &j.Task }, func(j *Job) { j.lab = l }, nil)
	require.NoError(t, err)
	return l
}

// Finish ends the i-th of the jobs in flight, with its Err.
func (l *Lab) Finish(i int) {
	l.done = append(l.done, l.Posted[i])
	l.Posted = slices.Delete(l.Posted, i, i+1)
	l.Control.Wake()
}

// FinishWith ends the oldest job in flight with an error.
func (l *Lab) FinishWith(err error) {
	l.Posted[0].Err = err
	l.Finish(0)
}

// asBackend is what the engine sees of a Lab.
type asBackend Lab

func (b *asBackend) Start() (bool, error) { return !b.Slow, b.StartErr }

func (b *asBackend) Progress() int {
	n := 0
	for b.Auto && len(b.Posted) > 0 {
		(*Lab)(b).Finish(0)
	}
	for len(b.done) > 0 {
		j := b.done[0]
		b.done = slices.Delete(b.done, 0, 1)
		n++
		b.Control.End(&j.Task)
		if j.Err == nil {
			pe.TaskDone(j)
		} else {
			pe.TaskFailed(j, j.Err)
		}
	}
	if b.State() == pe.Stopping && b.InFlight() == 0 {
		b.Control.Stopped()
	}
	return n
}

func (b *asBackend) Arm() bool {
	return len(b.done) == 0 && (!b.Auto || len(b.Posted) == 0) && (b.State() != pe.Stopping || b.InFlight() > 0)
}

func (b *asBackend) Stop() {
	for len(b.Posted) > 0 {
		(*Lab)(b).FinishWith(ErrFlushed)
	}
	if b.InFlight() == 0 {
		b.Control.Stopped()
	}
}

func (b *asBackend) Idle() {}
