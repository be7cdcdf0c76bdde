package pe_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
)

// copier is the context of the examples: one of package dma, with a pool of one task, and memory.
type copier struct {
	*dma.Context
	copies   *dma.CopyPool
	from, to *mmap.Map
}

func newCopier() *copier {
	dev := must(soft.Open(soft.Config{}))
	c := &copier{Context: must(dma.New(dev, dma.Config{Name: "copier"}))}
	c.copies = must(c.CopyPool(1, func(t *dma.CopyTask) {
		fmt.Println(t.Length(), "bytes copied")
		_ = t.Free()
		_ = c.Stop()
	}, pe.FailContext))
	c.from, c.to = must(mmap.Alloc(dev, 64, mmap.LocalReadOnly)), must(mmap.Alloc(dev, 64, mmap.LocalReadWrite))
	return c
}

func (c *copier) submit() error {
	task, err := c.copies.Alloc(bufinv.Source(c.from, 0, 64), bufinv.Target(c.to, 0, 64))
	return pe.SubmitOrFree(task, err)
}

func (c *copier) close() {
	for _, o := range []interface{ Close() error }{c.Context, c.from, c.to, c.Device()} {
		if err := o.Close(); err != nil {
			fmt.Println(err)
		}
	}
}

// An engine drives contexts and runs their callbacks. The context here is of package dma; those of
// other packages are driven likewise.
func ExampleEngine() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	c := newCopier()
	defer c.close()
	c.OnStateChange(func(prev, next pe.State) {
		fmt.Println(prev, "→", next)
		if next == pe.Running {
			c.Fail(c.submit()) // nil does nothing
		}
	})
	fmt.Println(engine.Connect(c), c.Start())
	fmt.Println(engine.Run(context.Background())) // until every context is Idle
	// Output:
	// <nil> <nil>
	// Idle → Running
	// 64 bytes copied
	// Running → Stopping
	// Stopping → Idle
	// <nil>
}

// A program that is interrupted: another goroutine has a function run on the engine's.
func ExampleEngine_Do() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	c := newCopier()
	defer c.close()
	fmt.Println(engine.Connect(c), c.Start())
	go func() {
		if err := engine.Do(func() { _ = c.Stop() }); err != nil {
			fmt.Println(err)
		}
	}()
	fmt.Println(engine.Run(context.Background()), c.State())
	// Output:
	// <nil> <nil>
	// <nil> Idle
}

// A callback has nobody to return an error to. It gives it to Fail; Run returns it.
func ExampleCore_Fail() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	c := newCopier()
	defer c.close()
	c.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			c.Fail(errors.New("there is nothing to copy"))
		}
	})
	fmt.Println(engine.Connect(c), c.Start())
	fmt.Println(engine.Run(context.Background()))
	// Output:
	// <nil> <nil>
	// context "copier": there is nothing to copy
}

// A call that is not legal in the state of its context says where it is.
func ExampleStateError() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	c := newCopier()
	defer c.close()
	_ = engine.Connect(c)
	err := c.submit()
	fmt.Println(err)
	var wrong *pe.StateError
	fmt.Println(errors.As(err, &wrong), wrong.State, wrong.Legal)
	// Output:
	// pe: cannot allocate from pool "copy": context "copier" is Idle, and the call is legal only in Running
	// true Idle [Running]
}
