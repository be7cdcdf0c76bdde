package dma_test

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
)

// A program that has the device gather two pieces of memory into one.
func Example() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	c := must(dma.New(dev, dma.Config{Engine: engine}))
	from := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	to := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	bufs := must(bufinv.New(3))
	copy(from.Bytes(), "by the ")
	copy(from.Bytes()[1000:], "device")

	copies := must(c.CopyPool(1,
		func(task *dma.CopyTask) {
			fmt.Printf("%d bytes copied: %s\n", task.Length(), task.Destination().Bytes())
			_ = task.Free()
			_ = c.Stop()
		},
		func(task *dma.CopyTask, err error) {
			_ = task.Free()
			c.Fail(err) // Run returns it
		}))
	if err := c.Start(); err != nil {
		fmt.Println(err)
	}
	task, err := copies.Alloc(
		bufinv.List(bufs.Source(from, 0, 7), bufs.Source(from, 1000, 6)),
		bufs.Target(to, 0, 4096))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := task.Submit(); err != nil {
		fmt.Println(err)
	}
	if err := engine.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, c := range []interface{ Close() error }{c, engine, bufs, from, to, dev} {
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 13 bytes copied: by the device
}
