// Command pe_task_error shows what happens to the other tasks when one fails. It submits 255
// writes. The second goes to memory that the peer has closed, which only the peer's device can
// know. That task fails with the reason, and its connection ends, so that all later tasks fail
// too, as flushed. Since there is no other connection, the context stops by itself. The peer
// is another context of this program.
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

const writes, bad, size = 255, 1, 64 // the second is bad; bytes of each

func main() {
	info := sample.Program{Name: "pe_task_error", About: "Submits 255 writes, the second of which fails.", Device: "soft-lo"}
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
	remote, err := memory.AsRemote(dev) // the same memory, as the peer sees it
	if err != nil {
		return err
	}
	lost, err := mmap.Alloc(dev, size, mmap.LocalReadWrite|mmap.RemoteWrite) // will be closed
	if err != nil {
		return err
	}
	gone, err := lost.AsRemote(dev)
	if err = errors.Join(err, lost.Close()); err != nil {
		return err
	}

	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the contexts
	r, err := rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}
	peer, err := rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true, Name: "peer", Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}
	pool, err := r.Pool(writes, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	err = errors.Join(peer.Start(), r.Start())
	conn, toConn, err1 := r.Export()
	back, toBack, err2 := peer.Export()
	if err = errors.Join(err, err1, err2); err == nil {
		err = errors.Join(conn.Connect(toBack), back.Connect(toConn))
	}
	if err != nil {
		return err
	}
	done, failed, flushed := 0, 0, 0
	r.OnStateChange(func(_, next pe.State) {
		s.Print("the context is %v", next)
		if next != pe.Running {
			return
		}
		for i := range writes {
			to := remote
			if i == bad {
				to = gone
			}
			task, err := pool.Write(conn, bufinv.Source(memory, 0, size), bufinv.Target(to, 0, size))
			r.Fail(pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) {
				switch {
				case err == nil:
					s.Print("write %d: done", i)
					done++
				case errors.Is(err, rdma.ErrFlushed): // because the second has failed
					flushed++
				default:
					s.Print("write %d: %v", i, err)
					failed++
				}
				r.Fail(t.Free()) // Fail(nil) does nothing
			}))
		}
		s.Print("%d writes submitted", writes)
	})
	// The context ends with the error of the write that had to fail, or with a mistake of this
	// program.
	if err := engine.Run(ctx); !errors.Is(r.Err(), rdma.ErrRemoteAccess) {
		return err
	}
	s.Print("%d done, %d failed, %d flushed", done, failed, flushed)
	s.Print("the context has stopped by itself: %v", r.Err())
	return nil
}
