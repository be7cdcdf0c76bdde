package rdma_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A program that writes to memory and stops when it is written. It is its own
// peer here, so that the example stands alone: between two programs, each takes
// the other's descriptors.
func Example() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	r := must(rdma.New(dev, rdma.Config{Engine: engine, Permissions: mmap.RemoteWrite}))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite))
	remote := must(mmap.Import(dev, must(memory.Export(dev))))
	bufs := must(bufinv.New(2))
	copy(memory.Bytes(), "over the wire")

	writes := must(r.Pool(1,
		func(task *rdma.Task) {
			fmt.Printf("%d bytes written: %s\n", task.Bytes(), memory.Bytes()[1024:1037])
			_ = task.Free()
			_ = r.Stop()
		},
		func(task *rdma.Task, err error) {
			_ = task.Free()
			r.Fail(err) // Run returns it
		}))

	var conn *rdma.Connection
	r.OnStateChange(func(_, next pe.State) {
		fmt.Println(next)
		switch next {
		case pe.Starting:
			own, desc, err := r.Export()
			if err == nil {
				conn = own
				err = conn.Connect(desc)
			}
			r.Fail(err) // nil does nothing
		case pe.Running:
			task, err := writes.Write(conn, bufs.Source(memory, 0, 13), bufs.Target(remote, 1024, 13))
			if err == nil {
				if err = task.Submit(); err != nil {
					_ = task.Free() // it is still ours
				}
			}
			r.Fail(err)
		}
	})
	if err := r.Start(); err != nil {
		fmt.Println(err)
	}
	if err := engine.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, c := range []interface{ Close() error }{r, engine, bufs, remote, memory, dev} {
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// Starting
	// Running
	// 13 bytes written: over the wire
	// Stopping
	// Idle
}
