// Command pe_task_try_submit shows which errors TrySubmit finds that Submit does not, for
// programs in development: everything that the device or the peer would refuse, if it is known
// on this side.
//
// A task writes to memory that the peer only lets others read. TrySubmit refuses, and the
// program can correct the task. Submit takes it: the peer refuses, and the connection ends.
// The program is its own peer.
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
)

const size = 64 // bytes of each write

func main() {
	info := sample.Program{Name: "pe_task_try_submit", About: "Shows mistakes that TrySubmit reports and Submit does not.", Device: "soft-lo"}
	sample.Main(info, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory
	memory, err := mmap.Alloc(dev, size, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	open, err := memory.AsRemote(dev) // the same memory, as the peer sees it
	if err != nil {
		return err
	}
	table, err := mmap.Alloc(dev, size, mmap.RemoteRead) // peers may only read it
	if err != nil {
		return err
	}
	barred, err := table.AsRemote(dev)
	if err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 2, EndWithLastConnection: true, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}
	var conn *rdma.Connection
	pool, err := r.Pool(1, func(t *rdma.Task) {
		if t.Destination().Map() == barred {
			r.Fail(errors.New("the peer accepted a write that its permissions forbid"))
		}
		s.Print("written: %d bytes", t.Bytes())
		r.Fail(pe.SubmitOrFree(t, t.SetDestination(bufinv.Target(barred, 0, size)))) // the same mistake, without the check
		s.Print("Submit: submitted")
	}, func(t *rdma.Task, err error) {
		s.Print("failed: %v", err)
		s.Print("the connection is %v", conn.State())
		pe.FailContext(t, err)
	})
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.Print("the context is %v", next)
		switch next {
		case pe.Starting:
			one, toOne, err := r.Export()
			other, toOther, errOther := r.Export()
			if err = errors.Join(err, errOther); err == nil {
				conn, err = one, errors.Join(one.Connect(toOther), other.Connect(toOne))
			}
			r.Fail(err)
		case pe.Running:
			task, err := pool.Write(conn, bufinv.Source(memory, 0, size), bufinv.Target(open, 0, size))
			if err != nil {
				r.Fail(err)
				return
			}
			err = errors.Join(task.SetDestination(bufinv.Target(barred, 0, size)), task.TrySubmit())
			s.Print("TrySubmit: %v", err)
			if !errors.Is(err, rdma.ErrPermission) {
				err = fmt.Errorf("TrySubmit should have refused the task for a missing permission, it returned: %v", err)
			} else if err = errors.Join(task.SetDestination(bufinv.Target(open, 0, size)), task.TrySubmit()); err == nil {
				s.Print("TrySubmit, corrected: submitted")
				return
			}
			pe.FailContext(task, err)
		}
	})
	// The context ends with the error of the write that had to fail, or with a mistake of this
	// program.
	if err := errors.Join(r.Start(), engine.Run(ctx)); !errors.Is(err, rdma.ErrRemoteAccess) {
		return err
	}
	s.Print("TrySubmit refused the mistake, Submit lost the connection because of it")
	return nil
}
