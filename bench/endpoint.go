package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is one end of a connection: a device, an engine, a context with a pool of
// tasks, and memory that the peer may read and write.
type endpoint struct {
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	pool   *rdma.Pool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	remote *mmap.Map
	conn   *rdma.Connection

	counters   bool
	completed  int              // tasks
	onComplete func(*rdma.Task) // called with each completed task
}

const access = mmap.RemoteRead | mmap.RemoteWrite

// makePool makes the pool of n tasks.
func (e *endpoint) makePool(n int) (err error) {
	e.pool, err = e.rdma.Pool(n, e.done, func(_ *rdma.Task, err error) { e.rdma.Fail(err) })
	return err
}

// progress drives the engine once, and returns any failure so far.
func (e *endpoint) progress() error {
	if _, err := e.engine.Progress(); err != nil {
		return err
	}
	return e.rdma.Err()
}

// waitRunning drives the engine until the context is Running.
func waitRunning(e *endpoint) error {
	for {
		if err := e.progress(); err != nil {
			return err
		}
		switch e.rdma.State() {
		case pe.Running:
			return nil
		case pe.Stopping, pe.Idle:
			return fmt.Errorf("the context stopped: %w", e.rdma.Err())
		}
	}
}

// tasks allocates n writes of size bytes. All use the same source and destination, as those of
// perftest do, so that caches have the same effect.
func (e *endpoint) tasks(n, size int) ([]*rdma.Task, error) {
	var tasks []*rdma.Task
	for range n {
		t, err := e.pool.Write(e.conn, e.bufs.Source(e.local, 0, size), e.bufs.Target(e.remote, 0, size))
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

func (e *endpoint) done(t *rdma.Task) {
	e.completed++
	if e.onComplete != nil {
		e.onComplete(t)
	}
}

// stop stops the context, and waits for its tasks.
func (e *endpoint) stop() error {
	e.onComplete = nil
	return e.rdma.Close()
}

func (e *endpoint) close() error {
	var errs []error
	if e.rdma != nil {
		errs = append(errs, e.stop())
	}
	if e.bufs != nil {
		errs = append(errs, e.bufs.Close())
	}
	for _, m := range []*mmap.Map{e.local, e.remote} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if e.engine != nil {
		errs = append(errs, e.engine.Close())
	}
	if e.dev != nil {
		if e.counters {
			errs = append(errs, e.showCounters())
		}
		errs = append(errs, e.dev.Close())
	}
	return errors.Join(errs...)
}

func (e *endpoint) showCounters() error { return showCounters(e.dev) }

func showCounters(dev verbs.Device) error {
	counters, err := dev.Counters()
	for _, c := range counters {
		if c.Value != 0 {
			fmt.Fprintf(os.Stderr, "    %s %d\n", c.Name, c.Value)
		}
	}
	return err
}
