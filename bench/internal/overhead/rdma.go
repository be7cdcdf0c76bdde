package overhead

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

const permissions = mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// pair is a context that sends, and the context of its peer, on one engine.
type pair struct {
	engine        *pe.Engine
	a, b          *rdma.Connections
	conn          *rdma.Connection
	tasks         *rdma.Pool
	local, target *mmap.Map // at a and b
	remote        *mmap.Map // target, as a sees it
	bufs          *bufinv.Inventory
	done          int // tasks of a
	received      int // messages at b
	failed        error
}

// newPair connects two contexts. If b has an engine of its own, a pass of the pair's engine polls
// a alone.
func newPair(dev verbs.Device, engineOfB *pe.Engine) (p *pair, err error) {
	p = &pair{engine: pe.New(pe.Config{})}
	if engineOfB == nil {
		engineOfB = p.engine
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.local, err = mmap.Alloc(dev, memorySize, mmap.LocalReadWrite); err != nil {
		return p, err
	}
	if p.target, err = mmap.Alloc(dev, memorySize, mmap.LocalReadWrite|permissions); err != nil {
		return p, err
	}
	if p.remote, err = p.target.AsRemote(dev); err != nil {
		return p, err
	}
	if p.bufs, err = bufinv.New(4 * maxBatch); err != nil {
		return p, err
	}
	if p.a, err = rdma.New(dev, rdma.Config{Engine: p.engine}); err != nil {
		return p, err
	}
	if p.b, err = rdma.New(dev, rdma.Config{Engine: engineOfB, Permissions: permissions}); err != nil {
		return p, err
	}
	p.tasks, err = p.a.Pool(maxBatch, func(*rdma.Task) { p.done++ }, func(_ *rdma.Task, err error) { p.failed = errors.Join(p.failed, err) })
	if err == nil {
		err = p.b.Receive(4*maxBatch, operationSize, func(*rdma.Message) { p.received++ })
	}
	if err == nil {
		err = errors.Join(p.a.Start(), p.b.Start())
	}
	if err == nil {
		p.conn, _, err = rdmatest.Connect(p.a, p.b)
	}
	for err == nil && (p.a.State() != pe.Running || p.b.State() != pe.Running) {
		if _, err = engineOfB.Progress(); err == nil {
			_, err = p.engine.Progress()
		}
		err = errors.Join(err, p.a.Err(), p.b.Err())
	}
	return p, err
}

func (p *pair) close() error {
	var errs []error
	for _, c := range []*rdma.Connections{p.a, p.b} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if p.bufs != nil {
		errs = append(errs, p.bufs.Close())
	}
	for _, m := range []*mmap.Map{p.remote, p.target, p.local} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(append(errs, p.engine.Close())...)
}

// wait drives the engine until n tasks have completed.
func (p *pair) wait(n int) error {
	for p.done < n && p.failed == nil {
		if _, err := p.engine.Progress(); err != nil {
			return err
		}
	}
	return p.failed
}

// submit submits the tasks again, and waits for all of them.
func (p *pair) submit(tasks []*rdma.Task, flags pe.SubmitFlags) error {
	p.done = 0
	if len(tasks) == 1 {
		if err := tasks[0].Submit(); err != nil {
			return err
		}
	} else if _, err := rdma.SubmitAll(tasks, flags); err != nil {
		return err
	}
	return p.wait(len(tasks))
}

// source and destination are 8 bytes of a's memory and of b's.
func (p *pair) source() *bufinv.Buf      { return p.bufs.Source(p.local, 0, operationSize) }
func (p *pair) destination() *bufinv.Buf { return p.bufs.Target(p.remote, 0, operationSize) }

func (p *pair) write() (*rdma.Task, error) {
	return p.tasks.Write(p.conn, p.source(), p.destination())
}

// writeAnew allocates a task and its buffers, writes, and frees them.
func (p *pair) writeAnew() error {
	p.done = 0
	t, err := p.write()
	if err != nil {
		return err
	}
	if err := errors.Join(t.Submit(), p.wait(1)); err != nil {
		return err
	}
	return t.Free()
}

// operations are those that are measured with resubmitted tasks.
var operations = []struct {
	name  string
	alloc func(p *pair) (*rdma.Task, error)
}{
	{"rdma write", (*pair).write},
	{"rdma read", func(p *pair) (*rdma.Task, error) {
		return p.tasks.Read(p.conn, p.bufs.Source(p.remote, 0, operationSize), p.bufs.Target(p.local, 0, operationSize))
	}},
	{"rdma fetch and add", func(p *pair) (*rdma.Task, error) { return p.tasks.FetchAdd(p.conn, p.destination(), 1) }},
}

// measureRDMA measures package rdma, one operation after the other.
func measureRDMA(_ context.Context, b *bench) (err error) {
	var peer *pe.Engine
	if b.device.Driver() != "soft" { // a software device responds fastest if its engine polls
		peer = pe.New(pe.Config{})
		defer func() { err = errors.Join(err, peer.Close()) }()
	}
	p, err := newPair(b.device, peer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, op := range operations {
		if err := p.measureOperation(b, op.name, op.alloc); err != nil {
			return err
		}
	}
	if err := p.measureReports(b); err != nil {
		return err
	}
	if err := b.measure("rdma write, allocated anew/1", 1, p.writeAnew); err != nil {
		return err
	}
	return b.measure("rdma, idle Progress", 1, func() error { _, err := p.engine.Progress(); return err })
}

// allocAll allocates as many tasks as the pool has.
func (p *pair) allocAll(alloc func(*pair) (*rdma.Task, error)) ([]*rdma.Task, error) {
	tasks := make([]*rdma.Task, maxBatch)
	for i := range tasks {
		var err error
		if tasks[i], err = alloc(p); err != nil {
			return nil, err
		}
	}
	return tasks, nil
}

// measureOperation measures tasks of one kind, alone and in batches.
func (p *pair) measureOperation(b *bench, name string, alloc func(*pair) (*rdma.Task, error)) error {
	tasks, err := p.allocAll(alloc)
	if err != nil {
		return err
	}
	for _, n := range batches {
		if err := b.measure(fmt.Sprintf("%s/%d", name, n), n, func() error { return p.submit(tasks[:n], 0) }); err != nil {
			return err
		}
	}
	return rdma.FreeAll(tasks)
}

// measureReports measures batches of writes of which only the last has a completion.
func (p *pair) measureReports(b *bench) error {
	tasks, err := p.allocAll((*pair).write)
	if err != nil {
		return err
	}
	err = b.measure(fmt.Sprintf("rdma write/%d, one completion", maxBatch), maxBatch, func() error { return p.submit(tasks, pe.OptimizeReports) })
	return errors.Join(err, rdma.FreeAll(tasks))
}
