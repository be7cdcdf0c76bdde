// Command pe_task_try_submit shows what TrySubmit finds that Submit does not. Both
// refuse what would do harm unseen, such as buffers that are too small. TrySubmit
// also looks for what the device or the peer would refuse, as far as it can be known
// here; it is for programs in development.
//
// A task was allocated with a good destination, which Alloc has checked; then it is
// given one that the peer lets nobody write to. TrySubmit refuses, says why, and
// the task can be mended. Submit takes it: the peer refuses, and the connection ends.
//
// The peer is another context of this program.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

const size = 64 // bytes of each write

func main() {
	info := sample.Program{Name: "pe_task_try_submit", About: "Shows what TrySubmit finds that Submit does not.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	rdma, peer   *rdma.Context
	conn         *rdma.Connection
	pool         *rdma.WritePool
	local        *mmap.Map
	open, barred *mmap.Map // memory of the peer, as this end sees it
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory

	// What is written, and memory of the peer: some to write, some only to read.
	if p.local, err = mmap.Alloc(dev, size, mmap.LocalReadOnly); err != nil {
		return err
	}
	if p.open, err = export(dev, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	if p.barred, err = export(dev, mmap.RemoteRead); err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	if p.peer, err = rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, Name: "peer", Permissions: mmap.RemoteRead, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.rdma.WritePool(1, p.written, p.notWritten); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	p.fail(errors.Join(p.peer.Start(), p.rdma.Start()))
	// What the context ends with is the write that was to fail, or a mistake of ours.
	if err := engine.Run(ctx); !errors.Is(p.rdma.Err(), rdma.ErrRemoteAccess) {
		return err
	}
	p.Print("TrySubmit has refused the mistake, Submit has lost the connection to it")
	return nil
}

// export makes memory of the peer's and what the other end sees of it.
func export(dev verbs.Device, permissions mmap.Permission) (seen *mmap.Map, err error) {
	m, err := mmap.Alloc(dev, size, permissions)
	if err != nil {
		return nil, err
	}
	desc, err := m.Export(dev)
	if err != nil {
		return nil, err
	}
	return mmap.Import(dev, desc)
}

func (p *program) stateChanged(prev, next pe.State) {
	p.Print("the context is %v", next)
	switch next {
	case pe.Starting:
		p.fail(p.connect())
	case pe.Running:
		p.fail(p.submit())
	case pe.Idle:
		p.peer.Stop()
	}
}

// connect gives both ends each other's descriptor.
func (p *program) connect() error {
	here, ours, err := p.rdma.Export()
	there, theirs, err2 := p.peer.Export()
	if p.conn = here; err != nil || err2 != nil {
		return errors.Join(err, err2)
	}
	return errors.Join(here.Connect(theirs), there.Connect(ours))
}

// submit makes the mistake, and has TrySubmit find it.
func (p *program) submit() error {
	task, err := p.pool.Alloc(p.conn, bufinv.Source(p.local, 0, size), bufinv.Target(p.open, 0, size))
	if err != nil {
		return err
	}
	if err := p.try(task); err != nil {
		p.fail(task.Free())
		return err
	}
	return nil
}

func (p *program) try(t *rdma.WriteTask) error {
	if err := t.SetDestination(bufinv.Target(p.barred, 0, size)); err != nil {
		return err
	}
	err := t.TrySubmit()
	if !errors.Is(err, rdma.ErrPermission) {
		return fmt.Errorf("TrySubmit should have refused for a permission, and says: %v", err)
	}
	p.Print("TrySubmit: %v", err)

	// The task is still ours.
	if err := t.SetDestination(bufinv.Target(p.open, 0, size)); err != nil {
		return err
	}
	if err = t.TrySubmit(); err == nil {
		p.Print("TrySubmit, mended: submitted")
	}
	return err
}

// written makes the same mistake again, without the check.
func (p *program) written(t *rdma.WriteTask) {
	if t.Destination().Map() == p.barred {
		p.fail(errors.Join(errors.New("the peer has let itself be written to against its permissions"), t.Free()))
		return
	}
	p.Print("written: %d bytes", t.Length())
	err := t.SetDestination(bufinv.Target(p.barred, 0, size))
	if err == nil {
		err = t.Submit()
	}
	if err != nil {
		p.fail(errors.Join(err, t.Free()))
		return
	}
	p.Print("Submit: submitted")
}

func (p *program) notWritten(t *rdma.WriteTask, err error) {
	if errors.Is(err, rdma.ErrRemoteAccess) {
		p.Print("failed: %v", err)
		p.Print("the connection is %v", p.conn.State())
	} else {
		p.fail(err)
	}
	p.fail(t.Free())
}

// fail ends the context with an error, and stops the peer's.
func (p *program) fail(err error) {
	if err != nil {
		p.rdma.Fail(err)
		p.peer.Stop()
	}
}
