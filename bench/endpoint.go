package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is one end of a connection: a device, an engine, a context with a pool
// of writes, and memory that the peer may write.
type endpoint struct {
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Context
	writes *rdma.WritePool
	bufs   *bufinv.Inventory
	local  *mmap.Map
	remote *mmap.Map
	conn   *rdma.Connection

	counters  bool
	completed int                   // writes
	again     func(*rdma.WriteTask) // what to do with a completed one
	err       error
}

// open makes an endpoint that has exported its connection and memory.
func open(o options, tasks, memory int) (e *endpoint, conn, mem []byte, err error) {
	e = &endpoint{counters: o.counters}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.dev, err = device.Open(o.device); err != nil {
		return e, nil, nil, err
	}
	if e.engine, err = pe.New(pe.Config{}); err != nil {
		return e, nil, nil, err
	}
	if e.local, err = mmap.Alloc(e.dev, memory, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return e, nil, nil, err
	}
	if e.bufs, err = bufinv.New(2 * tasks); err != nil {
		return e, nil, nil, err
	}
	if e.rdma, err = rdma.New(e.dev, rdma.Config{Permissions: mmap.RemoteWrite}); err != nil {
		return e, nil, nil, err
	}
	if e.writes, err = e.rdma.WritePool(tasks, e.done, e.failed); err != nil {
		return e, nil, nil, err
	}
	if err = e.engine.Connect(e.rdma); err != nil {
		return e, nil, nil, err
	}
	if err = e.rdma.Start(); err != nil {
		return e, nil, nil, err
	}
	if e.conn, conn, err = e.rdma.Export(); err != nil {
		return e, nil, nil, err
	}
	mem, err = e.local.Export(e.dev)
	return e, conn, mem, err
}

// connect takes the peer's descriptors.
func (e *endpoint) connect(conn, mem []byte) (err error) {
	if e.remote, err = mmap.Import(e.dev, mem); err != nil {
		return err
	}
	return e.conn.Connect(conn)
}

// progress drives the engine once, and reports what went wrong so far.
func (e *endpoint) progress() error {
	if _, err := e.engine.Progress(); err != nil {
		return err
	}
	return e.err
}

// waitRunning drives the engines until all contexts run.
func waitRunning(endpoints ...*endpoint) error {
	for {
		running := 0
		for _, e := range endpoints {
			if err := e.progress(); err != nil {
				return err
			}
			switch e.rdma.State() {
			case pe.Running:
				running++
			case pe.Stopping, pe.Idle:
				return fmt.Errorf("the context stopped: %w", e.rdma.Err())
			}
		}
		if running == len(endpoints) {
			return nil
		}
	}
}

// tasks allocates n writes of size bytes, each from a place of its own to the
// beginning of the peer's memory. Places repeat where the memory is too small.
func (e *endpoint) tasks(n, size int) ([]*rdma.WriteTask, error) {
	var tasks []*rdma.WriteTask
	for i := range n {
		off := i * size % (e.local.Len() - size + 1) &^ 7
		t, err := e.writes.Alloc(e.conn, e.bufs.Source(e.local, off, size), e.bufs.Target(e.remote, 0, size))
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

func (e *endpoint) done(t *rdma.WriteTask) {
	e.completed++
	if e.again != nil {
		e.again(t)
	}
}

func (e *endpoint) failed(_ *rdma.WriteTask, err error) {
	if e.err == nil {
		e.err = err
	}
}

// stop ends the context, and frees its tasks when they have come back.
func (e *endpoint) stop(tasks []*rdma.WriteTask) error {
	e.again = nil
	if err := e.rdma.Stop(); err != nil {
		return err
	}
	for e.rdma.State() != pe.Idle {
		if _, err := e.engine.Progress(); err != nil {
			return err
		}
		for i, t := range tasks {
			if t != nil && !t.InFlight() {
				if err := t.Free(); err != nil {
					return err
				}
				tasks[i] = nil
			}
		}
	}
	return nil
}

func (e *endpoint) close() error {
	var errs []error
	if e.rdma != nil {
		if e.rdma.State() != pe.Idle {
			errs = append(errs, e.stop(nil))
		}
		errs = append(errs, e.rdma.Close())
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

func (e *endpoint) showCounters() error {
	counters, err := e.dev.Counters()
	for _, c := range counters {
		if c.Value != 0 {
			fmt.Fprintf(os.Stderr, "    %s %d\n", c.Name, c.Value)
		}
	}
	return err
}
