package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	rateBatch   = 64
	rateBatches = 8
	rateSize    = 8
)

// writeRate writes 8 bytes at a time, in batches, to a context of the same
// process that sleeps.
func writeRate(o options) (string, error) {
	rate, err := writesPerSecond(o, func(*endpoint) error { return nil })
	return fmt.Sprintf("%.2f M writes/s of %d bytes, %.0f ns each, batches of %d", rate/1e6, rateSize, 1e9/rate, rateBatch), err
}

// writesPerSecond measures the rate of writeRate. prepare gets the end that is written
// to, before it sleeps.
func writesPerSecond(o options, prepare func(y *endpoint) error) (rate float64, err error) {
	x, xConn, xMem, err := open(o, rateBatch*rateBatches, 4096)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	y, yConn, yMem, err := open(o, 1, 4096)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, y.close()) }()
	if err := errors.Join(x.connect(yConn, yMem), y.connect(xConn, xMem)); err != nil {
		return 0, err
	}
	if err := waitRunning(x, y); err != nil {
		return 0, err
	}
	if err := prepare(y); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	asleep := make(chan error, 1)
	go func() { asleep <- y.engine.Run(ctx) }()
	defer func() {
		cancel()
		if e := <-asleep; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()

	if err := x.repeatBatches(); err != nil {
		return 0, err
	}
	writes, elapsed, err := measure(x, o.duration)
	if err != nil {
		return 0, err
	}
	if err := x.stop(); err != nil {
		return 0, err
	}
	return float64(writes) / elapsed.Seconds(), nil
}

// repeatBatches has batches of small writes go round.
func (e *endpoint) repeatBatches() error {
	tasks, err := e.tasks(rateBatch*rateBatches, rateSize)
	if err != nil {
		return err
	}
	// Tasks of a batch complete in order, so a batch goes out again when its
	// last task has come back.
	last := make(map[*rdma.Task]int)
	for b := range rateBatches {
		last[tasks[(b+1)*rateBatch-1]] = b
	}
	submit := func(b int) {
		_, err := rdma.SubmitAll(tasks[b*rateBatch:(b+1)*rateBatch], pe.OptimizeReports)
		e.rdma.Fail(err)
	}
	e.again = func(t *rdma.Task) {
		if b, ok := last[t]; ok {
			submit(b)
		}
	}
	for b := range rateBatches {
		submit(b)
	}
	return nil
}

// bandwidth moves large blocks: to, or from, a process that sleeps or, if they are
// sent, receives.
func bandwidth(o options) (string, error) {
	return withPeer(o, o.window, max(o.size, 4096), func(e *endpoint) (string, error) {
		moved, elapsed, err := repeat(e, o)
		if err != nil {
			return "", err
		}
		rate := float64(moved) * float64(o.size) / elapsed.Seconds()
		return fmt.Sprintf("%.4g GB/s with %d bytes in each, %d in flight", rate/1e9, o.size, o.window), nil
	})
}

// repeat keeps a window of tasks in flight, and returns how many are completed in
// which time.
func repeat(e *endpoint, o options) (completed int, elapsed time.Duration, err error) {
	tasks, err := e.tasks(o.window, o.size)
	if err != nil {
		return 0, 0, err
	}
	submit := func(t *rdma.Task) {
		e.rdma.Fail(t.Submit())
	}
	e.again = submit
	for _, t := range tasks {
		submit(t)
	}
	if completed, elapsed, err = measure(e, o.duration); err != nil {
		return 0, 0, err
	}
	return completed, elapsed, e.stop()
}

// servePassive lends its memory and sleeps.
func servePassive(o options) error {
	return serve(o, 1, max(o.size, 4096), func(ctx context.Context, e *endpoint) error { return e.engine.Run(ctx) })
}

// serveReceives receives what comes, twice as much at a time as is sent.
func serveReceives(o options) error {
	n := 2 * o.window
	return serve(o, n, max(o.size, 4096), func(ctx context.Context, e *endpoint) error {
		if err := waitRunning(e); err != nil {
			return err
		}
		for range n {
			t, err := e.receives.Alloc(e.bufs.Target(e.local, 0, o.size))
			if err != nil {
				return err
			}
			e.failed(t.Submit())
		}
		for ctx.Err() == nil {
			if err := e.progress(); err != nil {
				return err
			}
		}
		return e.stop()
	})
}

// measure counts completions for a while, after a warm-up.
func measure(e *endpoint, d time.Duration) (completed int, elapsed time.Duration, err error) {
	if err := warmedUp(e, d); err != nil {
		return 0, 0, err
	}
	return measureNow(e, d)
}

// warmedUp drives the engine before something is measured for a while.
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
