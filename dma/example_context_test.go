package dma_test

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

// A context needs no peer: it is Running when Start returns, and can be started again.
func ExampleContext() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	c := must(dma.New(dev, dma.Config{Engine: engine}))
	for range 2 {
		fmt.Println(c.Start(), c.State())
		fmt.Println(c.Stop())
		for c.State() != pe.Idle {
			must(engine.Progress())
		}
	}
	fmt.Println(errors.Join(c.Close(), engine.Close(), dev.Close()))
	// Output:
	// <nil> Running
	// <nil>
	// <nil> Running
	// <nil>
	// <nil>
}
