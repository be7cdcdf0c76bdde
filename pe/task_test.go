package pe_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

func TestPoolCounts(t *testing.T) {
	_, d := connected(t, 3)
	require.NoError(t, d.Start())
	assert.Equal(t, 3, d.jobs.Cap())
	var jobs []*job
	for i := range 3 {
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		assert.False(t, slices.Contains(jobs, j))
		jobs = append(jobs, j)
		assert.Equal(t, 2-i, d.jobs.Available())
	}
	_, err := d.jobs.Alloc()
	assert.ErrorIs(t, err, pe.ErrExhausted)
	assert.ErrorContains(t, err, `pool "jobs" of context "dev"`)
	assert.ErrorContains(t, err, "all 3 tasks")
	jobs[1].SetUserData("mine")
	require.NoError(t, d.jobs.Free(jobs[1]))
	again, err := d.jobs.Alloc()
	require.NoError(t, err)
	assert.Same(t, jobs[1], again)
	assert.Nil(t, again.UserData())
	assert.Equal(t, 3, d.Allocated())
	assert.Equal(t, 3, d.jobs.Cap())
}

func TestPoolPreparesEachTaskOnce(t *testing.T) {
	d := newDevice(t, 1)
	var made []*job
	p, err := backend.NewPool(d.ctl, "p", 5, jobTask, func(j *job) { j.id = len(made); made = append(made, j) }, nil)
	require.NoError(t, err)
	assert.Len(t, made, 5)
	assert.Equal(t, 5, p.Available())
}

func TestPoolMisuse(t *testing.T) {
	d := newDevice(t, 1)
	for _, n := range []int{0, -1, pe.MaxTasks + 1, math.MaxInt} {
		_, err := backend.NewPool(d.ctl, "p", n, jobTask, nil, nil)
		assert.ErrorIs(t, err, pe.ErrInvalid)
	}
	_, err := backend.NewPool[job](d.ctl, "p", 1, nil, nil, nil)
	assert.ErrorIs(t, err, pe.ErrInvalid)
	_, err = backend.NewPool(backend.Control{}, "p", 1, jobTask, nil, nil)
	assert.ErrorIs(t, err, pe.ErrInvalid)
	_, err = backend.NewPool(d.ctl, "p", 1, func(*job) *pe.Task { return nil }, nil, nil)
	assert.ErrorIs(t, err, pe.ErrInvalid)
	var shared pe.Task
	_, err = backend.NewPool(d.ctl, "p", 2, func(*job) *pe.Task { return &shared }, nil, nil)
	assert.ErrorIs(t, err, pe.ErrInvalid)
}

func TestTaskMisuse(t *testing.T) {
	e, d := connected(t, 2)
	other, err := backend.NewPool(d.ctl, "other", 1, jobTask, nil, nil)
	require.NoError(t, err)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	j.done = func(*job, error) {}

	assert.ErrorIs(t, other.Free(j), pe.ErrInvalid)
	assert.ErrorIs(t, d.jobs.Free(nil), pe.ErrInvalid)
	assert.ErrorIs(t, d.jobs.Free(&job{}), pe.ErrFreed)
	copied := new(job)
	*copied = *j //nolint:govet // the copy is the point
	assert.ErrorIs(t, d.jobs.Free(copied), pe.ErrFreed)
	assert.ErrorIs(t, d.submit(copied, 0), pe.ErrFreed)
	assert.ErrorIs(t, d.ctl.MayChange(&copied.Task, "value"), pe.ErrFreed)

	require.NoError(t, d.ctl.MayChange(&j.Task, "value"))
	require.NoError(t, d.submit(j, 0))
	err = d.submit(j, 0)
	assert.ErrorIs(t, err, pe.ErrInUse)
	assert.ErrorContains(t, err, `cannot submit a job: pool "jobs" of context "dev": the task is in flight`)
	assert.ErrorIs(t, d.jobs.Free(j), pe.ErrInUse)
	err = d.ctl.MayChange(&j.Task, "value")
	assert.ErrorIs(t, err, pe.ErrInUse)
	assert.ErrorContains(t, err, `cannot set the value: pool "jobs" of context "dev": the task is in flight`)
	assert.Equal(t, 1, d.Core.InFlight())
	assert.Equal(t, 1, e.InFlight())

	d.complete(0, nil)
	quiesce(t, e)
	d.ctl.End(&j.Task) // not in flight: counts stay right
	d.ctl.End(&j.Task)
	assert.Zero(t, d.Core.InFlight())
	require.NoError(t, d.Stop())
	require.NoError(t, d.ctl.MayChange(&j.Task, "value"), "in Stopping too")
	require.NoError(t, d.jobs.Free(j))
	assert.ErrorIs(t, d.jobs.Free(j), pe.ErrFreed)
	err = d.ctl.MayChange(&j.Task, "value")
	assert.ErrorIs(t, err, pe.ErrFreed)
	assert.ErrorContains(t, err, "the task was freed")
	assert.ErrorIs(t, d.submit(j, 0), pe.ErrFreed)
	assert.Equal(t, 2, d.jobs.Available())
	assert.Zero(t, d.Allocated())
}

func TestAbortGivesTheTaskBack(t *testing.T) {
	_, d := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	require.NoError(t, d.ctl.Begin(&j.Task, "submit"))
	assert.True(t, j.InFlight())
	d.ctl.End(&j.Task)
	assert.False(t, j.InFlight())
	assert.Zero(t, d.Core.InFlight())
	require.NoError(t, d.jobs.Free(j))
}

func TestResubmitInsideTheCallback(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	runs := 0
	j.done = func(j *job, err error) {
		require.NoError(t, err)
		assert.False(t, j.InFlight())
		if runs++; runs < 5 {
			require.NoError(t, d.submit(j, 0))
			d.complete(0, nil)
			return
		}
		require.NoError(t, d.jobs.Free(j))
		require.NoError(t, d.Stop())
	}
	require.NoError(t, d.submit(j, 0))
	d.complete(0, nil)
	require.NoError(t, e.Run(t.Context()))
	assert.Equal(t, 5, runs)
}
