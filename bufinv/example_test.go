package bufinv_test

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// A message of two pieces is gathered from two places of one memory.
func Example() {
	gather := func(dev verbs.Device) error {
		local, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
		if err != nil {
			return err
		}
		copy(local.Bytes(), "header: ")
		copy(local.Bytes()[1024:], "body")
		var bufs bufinv.Inventory
		// An error of either piece would sit in the list.
		message := bufinv.List(bufs.Source(local, 0, 8), bufs.Source(local, 1024, 4))
		if err := message.Err(); err != nil {
			return err
		}
		fmt.Printf("%d pieces, %d bytes: %s\n", message.ListLen(), message.ListDataLen(), message.AppendBytes(nil))
		if err := message.Free(); err != nil {
			return err
		}
		if err := bufs.Close(); err != nil {
			return err
		}
		return local.Close()
	}
	// gather runs with a device that package device has opened.
	_ = gather
}

// Elements of one size, each aligned to a cache line.
func ExamplePool() {
	receive := func(local *mmap.Map) error {
		pool, err := bufinv.NewPool(local, bufinv.PoolConfig{Count: 16, Size: 256, Align: 64})
		if err != nil {
			return err
		}
		b := pool.Alloc()
		if err := b.Err(); err != nil {
			return err
		}
		// A receive task appends what arrives to b, and b.Bytes returns it.
		if err := b.Free(); err != nil {
			return err
		}
		return pool.Close()
	}
	_ = receive
}
