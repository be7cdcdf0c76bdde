package mmap_test

import (
	"fmt"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// One side opens memory to its peer and writes a descriptor of it, the peer
// imports what it was given.
func Example() {
	responder := func(dev verbs.Device, path string) error {
		local, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
		if err != nil {
			return err
		}
		desc, err := local.Export(dev)
		if err != nil {
			return err
		}
		if err := descriptor.WriteFile(path, []byte(descriptor.Armor(desc))); err != nil {
			return err
		}
		// The peer writes into local.Bytes() from now on, until Close.
		return local.Close()
	}
	requester := func(dev verbs.Device, path string) error {
		desc, err := descriptor.ReadFile(path)
		if err != nil {
			return err
		}
		remote, err := mmap.Import(dev, desc)
		if err != nil {
			return err
		}
		fmt.Printf("%d bytes at %#x: %v\n", remote.Len(), remote.Addr(), remote.Permissions())
		return remote.Close()
	}
	// Both run with devices that package device has opened.
	_, _ = responder, requester
}
