package docs

import (
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// What the recipes of cookbook.md share: each has a file of its own, cookbook_…_test.go.

// end is what one program has: a device, memory, an engine and a context.
type end struct {
	dev    verbs.Device
	memory *mmap.Map
	bufs   bufinv.Inventory
	engine *pe.Engine
	rdma   *rdma.Connections
}

// newEnd makes the end of a program of its own, on an engine of its own unless cfg has one.
func newEnd(deviceName string, size int, cfg rdma.Config) *end {
	if cfg.Engine == nil {
		cfg.Engine = pe.New(pe.Config{})
	}
	dev := must(device.Open(deviceName))
	return &end{
		dev:    dev,
		memory: must(mmap.Alloc(dev, size, mmap.LocalReadWrite|mmap.RemoteWrite)),
		engine: cfg.Engine,
		rdma:   must(rdma.New(dev, cfg)),
	}
}

// close stops what is not Idle, and releases everything.
func (e *end) close() {
	check(errors.Join(e.rdma.Close(), e.engine.Close(), e.bufs.Close(), e.memory.Close(), e.dev.Close()))
}

// importFrom makes the memory of another end a target for this one.
func (e *end) importFrom(other *end) *mmap.Map {
	return must(mmap.Import(e.dev, must(other.memory.Export(other.dev))))
}

// connect starts two contexts, and connects them.
func connect(a, b *rdma.Connections) (atA, atB *rdma.Connection) {
	check(a.Start())
	check(b.Start())
	atA, fromA, err := a.Export()
	check(err)
	atB, fromB, err := b.Export()
	check(err)
	check(atA.Connect(fromB))
	check(atB.Connect(fromA))
	return atA, atB
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
