package mmap_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
)

// One program opens memory to its peer, the peer imports what it was given. Here both are one
// program, with a device each.
func ExampleMap() {
	ours, theirs := must(device.Open("soft-lo")), must(device.Open("soft-lo"))

	local := must(mmap.Alloc(ours, 4096, mmap.LocalReadWrite|mmap.RemoteWrite))
	desc := must(local.Export(ours)) // bytes, for the peer; as secret as the memory

	remote := must(mmap.Import(theirs, desc))
	fmt.Printf("%d bytes for %v\n", remote.Len(), remote.Permissions())
	fmt.Println(remote.Bytes() == nil, remote.Addr() == local.Addr())

	// The peer writes into local.Bytes(), with tasks of package rdma, until Close.
	check(errors.Join(remote.Close(), local.Close(), ours.Close(), theirs.Close()))
	// Output:
	// 4096 bytes for RemoteWrite
	// true true
}

// Memory of the program's own is pinned as long as it is registered.
func ExampleRegister() {
	dev := must(device.Open("soft-lo"))
	own := []byte("memory of the program's")
	m := must(mmap.Register(dev, own, mmap.RemoteRead))
	fmt.Printf("%s\n", m.Bytes())
	_, err := mmap.Register(dev, own, mmap.RemoteWrite) // that takes LocalReadWrite too
	fmt.Println(errors.Is(err, mmap.ErrPermission))
	check(errors.Join(m.Close(), dev.Close()))
	// Output:
	// memory of the program's
	// true
}

// A program that works with slices of its memory finds the offsets that buffers take.
func ExampleMap_Find() {
	dev := must(device.Open("soft-lo"))
	page := make([]byte, 4096)
	m := must(mmap.Register(dev, page, mmap.LocalReadWrite))
	header := page[64:80]
	fmt.Println(m.Find(header)) // for bufinv.Source(m, off, len(header))
	_, err := m.Find([]byte("elsewhere"))
	fmt.Println(errors.Is(err, mmap.ErrRange))
	check(errors.Join(m.Close(), dev.Close()))
	// Output:
	// 64 <nil>
	// true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
