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

// endpoint is one end of a connection: a device, an engine, a context with pools of
// tasks, and memory that the peer may read and write.
type endpoint struct {
	dev      verbs.Device
	engine   *pe.Engine
	rdma     *rdma.Connections
	writes   *rdma.Pool
	reads    *rdma.Pool
	sends    *rdma.Pool
	receives *rdma.ReceivePool
	bufs     *bufinv.Inventory
	local    *mmap.Map
	remote   *mmap.Map
	conn     *rdma.Connection

	counters  bool
	stopping  bool
	completed int              // tasks
	again     func(*rdma.Task) // what to do with a completed one
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
	e.engine = pe.New(pe.Config{})
	if e.local, err = mmap.Alloc(e.dev, memory, mmap.LocalReadWrite|access); err != nil {
		return e, nil, nil, err
	}
	if e.bufs, err = bufinv.New(2 * tasks); err != nil {
		return e, nil, nil, err
	}
	if e.rdma, err = rdma.New(e.dev, rdma.Config{EndWithLastConnection: true, Engine: e.engine, Permissions: access, Path: rdma.Path{MTU: verbs.MTU(o.mtu)}, AckTimeout: o.ackTimeout}); err != nil {
		return e, nil, nil, err
	}
	if err = e.pools(o.run, tasks); err != nil {
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

const access = mmap.RemoteRead | mmap.RemoteWrite

// pools makes those that a measurement uses.
func (e *endpoint) pools(measurement string, n int) (err error) {
	failed := func(_ *rdma.Task, err error) { e.failed(err) }
	switch measurement {
	case "read_bw":
		e.reads, err = e.rdma.Pool(n, e.done, failed)
	case "send_bw":
		if e.sends, err = e.rdma.Pool(n, e.done, failed); err == nil {
			e.receives, err = e.rdma.ReceivePool(n, e.received, func(_ *rdma.ReceiveTask, err error) { e.failed(err) })
		}
	default:
		e.writes, err = e.rdma.Pool(n, e.done, failed)
	}
	return err
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
	return e.rdma.Err()
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

// tasks allocates n tasks that move size bytes, all of them between the same places, as
// those of perftest do: caches then see the same.
func (e *endpoint) tasks(n, size int) ([]*rdma.Task, error) {
	var tasks []*rdma.Task
	for range n {
		var t *rdma.Task
		var err error
		switch {
		case e.reads != nil:
			t, err = e.reads.Read(e.conn, e.bufs.Source(e.remote, 0, size), e.bufs.Target(e.local, 0, size))
		case e.sends != nil:
			t, err = e.sends.Send(e.conn, e.bufs.Source(e.local, 0, size))
		default:
			t, err = e.writes.Write(e.conn, e.bufs.Source(e.local, 0, size), e.bufs.Target(e.remote, 0, size))
		}
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

func (e *endpoint) done(t *rdma.Task) {
	e.completed++
	if e.again != nil {
		e.again(t)
	}
}

// received submits a receive again, unless the endpoint is about to stop.
func (e *endpoint) received(t *rdma.ReceiveTask) {
	if !e.stopping {
		e.failed(t.Submit())
	}
}

func (e *endpoint) failed(err error) { e.rdma.Fail(err) }

// stop ends the context, which takes its tasks back.
func (e *endpoint) stop() error {
	e.again, e.stopping = nil, true
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
