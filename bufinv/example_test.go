package bufinv_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
)

// What tasks read is the data of a buffer; what they write becomes data. Task calls free the
// buffers that they are given; here nobody else does.
func ExampleInventory() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	copy(memory.Bytes(), "to be sent")
	var bufs bufinv.Inventory // grows as needed

	source := bufs.Source(memory, 0, 10) // 10 bytes, all of them data
	fmt.Printf("%d bytes of data, room for %d: %s\n", source.DataLen(), source.Room(), source.Bytes())
	target := bufs.Target(memory, 1024, 64) // 64 bytes, all of them room
	fmt.Printf("%d bytes of data, room for %d\n", target.DataLen(), target.Room())
	check(target.Append([]byte("as a receive does")))
	fmt.Printf("%d bytes of data, room for %d: %s\n", target.DataLen(), target.Room(), target.Bytes())

	// Errors are in the buffer: the task that is given it returns them.
	fmt.Println(errors.Is(bufs.Source(memory, 4000, 1000).Err(), bufinv.ErrRange))

	fmt.Println(errors.Is(memory.Close(), mmap.ErrInUse)) // two buffers use it
	check(errors.Join(source.Free(), target.Free(), bufs.Close(), memory.Close(), dev.Close()))
	// Output:
	// 10 bytes of data, room for 0: to be sent
	// 0 bytes of data, room for 64
	// 17 bytes of data, room for 47: as a receive does
	// true
	// true
}

// A message of two pieces is gathered from two places of one memory.
func ExampleList() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	copy(memory.Bytes(), "header: ")
	copy(memory.Bytes()[1024:], "body")
	var bufs bufinv.Inventory
	message := bufinv.List(bufs.Source(memory, 0, 8), bufs.Source(memory, 1024, 4))
	check(message.Err()) // an error of either piece would be here
	fmt.Printf("%d pieces, %d bytes: %s\n", message.ListLen(), message.ListDataLen(), message.AppendBytes(nil))
	check(errors.Join(message.Free(), bufs.Close(), memory.Close(), dev.Close()))
	// Output: 2 pieces, 12 bytes: header: body
}

// Elements of one size, each aligned to a cache line.
func ExamplePool() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	pool := must(bufinv.NewPool(memory, bufinv.PoolConfig{Count: 16, Size: 200, Align: 64}))
	b := pool.Alloc()
	check(b.Err())
	fmt.Println(b.Room(), b.Addr()%64, pool.Available())
	check(b.Free())
	fmt.Println(pool.Available())
	check(errors.Join(pool.Close(), memory.Close(), dev.Close()))
	// Output:
	// 200 0 15
	// 16
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Buffers straight from a map, without an inventory: the map has one.
func ExampleSource() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadWrite))
	copy(memory.Bytes(), "header and body")
	message := bufinv.List(bufinv.Source(memory, 0, 6), bufinv.Source(memory, 11, 4))
	fmt.Printf("%q\n", message.AppendBytes(nil))
	check(errors.Join(message.Free(), memory.Close(), dev.Close()))
	// Output:
	// "headerbody"
}
