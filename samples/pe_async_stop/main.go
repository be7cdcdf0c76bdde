// Command pe_async_stop stops a context while tasks are in flight. It submits 16
// receives and sends 8 messages; when these have arrived, it stops the context.
// Stop does not wait: the 8 receives that are left come back through their error
// callback, flushed, while the context is Stopping. It is Idle when the last task has
// been freed, and then Run returns.
//
// It uses receives, because only a message completes them: the number in flight is known. The
// program is its own peer: its connection is connected to itself.
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
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	memory, err := mmap.Alloc(dev, (receives+1)*size, mmap.LocalReadWrite)
	if err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	r, err := rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}
	received, flushed := 0, 0
	stopHalfway := func(err error) { // when all messages have been sent and received
		if r.Fail(err); r.InFlight() == receives-messages {
			s.Print("stopped, with %d tasks in flight", r.InFlight())
			r.Stop()
		}
	}
	posted, err := r.ReceivePool(receives, func(t *rdma.ReceiveTask) {
		s.Print("receive %d: %d bytes", received, t.Length())
		received++
		stopHalfway(t.Free())
	}, func(t *rdma.ReceiveTask, err error) {
		if errors.Is(err, rdma.ErrFlushed) {
			s.Print("receive %d: flushed, while the context is %v", received+flushed, r.State())
			flushed++
		}
		pe.FailContext(t, err) // frees it; a task that Stop has flushed is no failure
	})
	if err != nil {
		return err
	}
	sends, err := r.Pool(messages, func(t *rdma.Task) { stopHalfway(t.Free()) }, pe.FailContext)
	if err != nil {
		return err
	}

	var conn *rdma.Connection
	r.OnStateChange(func(_, next pe.State) {
		s.Print("the context is %v", next)
		switch next {
		case pe.Starting: // the connection is its own peer
			own, desc, err := r.Export()
			if conn = own; err == nil {
				err = conn.Connect(desc)
			}
			r.Fail(err) // Fail(nil) does nothing
		case pe.Running:
			for i := range receives {
				task, err := posted.Alloc(bufinv.Target(memory, i*size, size))
				r.Fail(pe.SubmitOrFree(task, err))
			}
			for range messages {
				task, err := sends.Send(conn, bufinv.Source(memory, receives*size, size))
				r.Fail(pe.SubmitOrFree(task, err))
			}
			s.Print("%d receives and %d messages submitted", receives, messages)
		}
	})
	if err := errors.Join(r.Start(), engine.Run(ctx)); err != nil {
		return err
	}
	s.Print("%d messages received, %d receives flushed", received, flushed)
	return nil
}
