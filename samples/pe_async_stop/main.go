// Command pe_async_stop stops a context while tasks are in flight. It submits 16
// receives and sends 8 messages; when these have arrived, it stops the context.
// Stop does not wait: the 8 receives that are left come back through their error
// callback, flushed, while the context is Stopping. It is Idle when the last task has
// been freed, and then Run returns.
//
// Receives, because nothing but a message completes them: it is sure how many are in
// flight. The program is its own peer: its connection is connected to itself.
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
)

const receives, messages, size = 16, 8, 64 // bytes of each

func main() {
	info := sample.Program{Name: "pe_async_stop", About: "Stops a context of which half of the tasks are in flight.", Device: "soft-lo"}
	sample.Main(info, new(program).run)
}

type program struct {
	*sample.Session
	rdma     *rdma.Context
	conn     *rdma.Connection
	receives *rdma.ReceivePool
	sends    *rdma.SendPool
	memory   *mmap.Map // one place for each receive, and a message

	sent, received, flushed int
}

func (p *program) run(ctx context.Context, s *sample.Session) (err error) {
	p.Session = s
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	if p.memory, err = mmap.Alloc(dev, (receives+1)*size, mmap.LocalReadWrite); err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	if p.rdma, err = rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, GIDIndex: s.GIDIndex, Log: s.Log}); err != nil {
		return err
	}
	if p.receives, err = p.rdma.ReceivePool(receives, p.arrived, p.notArrived); err != nil {
		return err
	}
	if p.sends, err = p.rdma.SendPool(messages, p.gone, p.notGone); err != nil {
		return err
	}
	p.rdma.OnStateChange(p.stateChanged)
	if err := errors.Join(p.rdma.Start(), engine.Run(ctx)); err != nil {
		return err
	}
	p.Print("%d messages received, %d receives flushed", p.received, p.flushed)
	return nil
}

func (p *program) stateChanged(prev, next pe.State) {
	p.Print("the context is %v", next)
	switch next {
	case pe.Starting: // the connection is its own peer
		conn, desc, err := p.rdma.Export()
		if p.conn = conn; err == nil {
			err = conn.Connect(desc)
		}
		p.rdma.Fail(err)
	case pe.Running:
		p.rdma.Fail(p.submit())
	}
}

func (p *program) submit() error {
	for i := range receives {
		task, err := p.receives.Alloc(bufinv.Target(p.memory, i*size, size))
		if err != nil {
			return err
		}
		task.SetUserData(i)
		if err := pe.SubmitNew(task, nil, nil); err != nil {
			return err
		}
	}
	for range messages {
		task, err := p.sends.Alloc(p.conn, bufinv.Source(p.memory, receives*size, size))
		if err := pe.SubmitNew(task, err, nil); err != nil {
			return err
		}
	}
	p.Print("%d receives and %d messages submitted", receives, messages)
	return nil
}

func (p *program) arrived(t *rdma.ReceiveTask) {
	p.Print("receive %d: %d bytes", t.UserData(), t.Length())
	p.received++
	p.stopHalfway(t.Free())
}

func (p *program) gone(t *rdma.SendTask) {
	p.sent++
	p.stopHalfway(t.Free())
}

// stopHalfway stops the context when all messages have gone and arrived.
func (p *program) stopHalfway(err error) {
	p.rdma.Fail(err)
	if p.sent == messages && p.received == messages {
		p.Print("stopped, with %d tasks in flight", p.rdma.InFlight())
		p.rdma.Stop()
	}
}

// notArrived takes the receives that Stop has ended.
func (p *program) notArrived(t *rdma.ReceiveTask, err error) {
	if errors.Is(err, rdma.ErrFlushed) {
		p.Print("receive %d: flushed, while the context is %v", t.UserData(), p.rdma.State())
		p.flushed++
	}
	p.rdma.Fail(errors.Join(err, t.Free())) // does nothing for a flushed one
}

func (p *program) notGone(t *rdma.SendTask, err error) { p.rdma.Fail(errors.Join(err, t.Free())) }
