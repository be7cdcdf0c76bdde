package main

import (
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	rateBatch   = 64
	rateBatches = 8
	rateSize    = 8
)

// repeatBatches keeps batches of small writes in flight.
func (e *endpoint) repeatBatches() error {
	tasks, err := e.tasks(rateBatch*rateBatches, rateSize)
	if err != nil {
		return err
	}
	// The tasks of a batch complete in order, so a batch is submitted again when its last task
	// has completed.
	last := make(map[*rdma.Task]int)
	for b := range rateBatches {
		last[tasks[(b+1)*rateBatch-1]] = b
	}
	submit := func(b int) {
		_, err := rdma.SubmitAll(tasks[b*rateBatch:(b+1)*rateBatch], pe.OptimizeReports)
		e.rdma.Fail(err)
	}
	e.onComplete = func(t *rdma.Task) {
		if b, ok := last[t]; ok {
			submit(b)
		}
	}
	for b := range rateBatches {
		submit(b)
	}
	return nil
}

// measure counts completions for the time d, after a warm-up.
func measure(e *endpoint, d time.Duration) (completed int, elapsed time.Duration, err error) {
	if err := warmedUp(e, d); err != nil {
		return 0, 0, err
	}
	return measureNow(e, d)
}

// warmedUp drives the engine before a measurement of length d.
func warmedUp(e *endpoint, d time.Duration) error {
	for begin := time.Now(); time.Since(begin) < min(warmUp, 10*d); {
		if err := e.progress(); err != nil {
			return err
		}
	}
	return nil
}

// measureNow is measure without a warm-up.
func measureNow(e *endpoint, d time.Duration) (completed int, elapsed time.Duration, err error) {
	begin, before := time.Now(), e.completed
	for elapsed < d {
		if err := e.progress(); err != nil {
			return 0, 0, err
		}
		elapsed = time.Since(begin)
	}
	return e.completed - before, elapsed, nil
}
