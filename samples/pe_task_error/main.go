// Command pe_task_error shows what becomes of the other tasks when one fails. It
// submits 255 writes, the second of which goes to memory that the peer has given
// back, which nobody but the peer's device can know. That task comes back with the
// reason. It has ended its connection, so that all tasks behind it come back
// flushed; and since there is no other, the context stops by itself.
//
// The peer is another context of this program.
package main

import (
	"context"
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

const writes, bad, size = 255, 1, 64 // the second is bad; bytes of each

func main() {
	info := sample.Program{Name: "pe_task_error", About: "Submits 255 writes, the second of which fails.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	rdma, peer   *rdma.Context
	conn         *rdma.Connection
	pool         *rdma.WritePool
	local        *mmap.Map
	remote, gone *mmap.Map // memory of the peer, as this end sees it

	done, failed, flushed int
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory

	// What is written, and two memory maps of the peer, of which one is closed.
	if p.local, err = mmap.Alloc(dev, size, mmap.LocalReadOnly); err != nil {
		return err
	}
	if _, p.remote, err = export(dev); err != nil {
		return err
	}
	closed, gone, err := export(dev)
	if err != nil {
		return err
	}
	if p.gone, err = gone, closed.Close(); err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	if p.peer, err = rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, Name: "peer", GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.pool, err = p.rdma.WritePool(writes, p.written, p.notWritten); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	p.fail(errors.Join(p.peer.Start(), p.rdma.Start()))
	// What the context ends with is the write that was to fail, or a mistake of ours.
	if err := engine.Run(ctx); !errors.Is(p.rdma.Err(), rdma.ErrRemoteAccess) {
		return err
	}
	p.Print("%d done, %d failed, %d flushed", p.done, p.failed, p.flushed)
	p.Print("the context has stopped by itself: %v", p.rdma.Err())
	return nil
}

// export makes memory of the peer's and what the other end sees of it.
func export(dev verbs.Device) (m, seen *mmap.Map, err error) {
	if m, err = mmap.Alloc(dev, size, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return nil, nil, err
	}
	desc, err := m.Export(dev)
	if err == nil {
		seen, err = mmap.Import(dev, desc)
	}
	return m, seen, err
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

func (p *program) submit() error {
	for i := range writes {
		to := p.remote
		if i == bad {
			to = p.gone
		}
		task, err := p.pool.Alloc(p.conn, bufinv.Source(p.local, 0, size), bufinv.Target(to, 0, size))
		if err != nil {
			return err
		}
		task.SetUserData(i)
		if err := pe.SubmitNew(task, nil, nil); err != nil {
			return err
		}
	}
	p.Print("%d writes submitted", writes)
	return nil
}

func (p *program) written(t *rdma.WriteTask) {
	p.Print("write %d: done", t.UserData())
	p.done++
	p.fail(t.Free())
}

// notWritten takes the task that has failed, and those that were flushed for it.
func (p *program) notWritten(t *rdma.WriteTask, err error) {
	switch {
	case errors.Is(err, rdma.ErrFlushed):
		p.flushed++
	case errors.Is(err, rdma.ErrRemoteAccess):
		p.Print("write %d: %v", t.UserData(), err)
		p.failed++
	default:
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
