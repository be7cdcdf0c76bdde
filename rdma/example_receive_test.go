package rdma_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A server that answers each message, and its client, which is itself here, so that the
// example stands alone. It makes no buffers, and no receives.
func ExampleContext_Receive() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	r := must(rdma.New(dev, rdma.Config{Engine: engine}))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadOnly))
	sends := must(r.Pool(2, func(t *rdma.Task) { r.Fail(t.Free()) }, func(t *rdma.Task, err error) { r.Fail(errors.Join(err, t.Free())) }))

	send := func(conn *rdma.Connection, text string, at int) {
		n := copy(memory.Bytes()[at:], text)
		task, err := sends.Send(conn, bufinv.Source(memory, at, n))
		r.Fail(pe.SubmitOrFree(task, err)) // nil does nothing
	}
	err := r.Receive(16, 64, func(m *rdma.Message) {
		fmt.Printf("%s\n", m.Bytes())
		switch string(m.Bytes()) {
		case "ping":
			send(m.Connection(), "pong", 64)
		case "pong":
			r.Fail(r.Stop())
		}
	})
	if err != nil {
		fmt.Println(err)
	}
	r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Ready {
			send(conn, "ping", 0)
		}
	})
	if err := r.Start(); err != nil {
		fmt.Println(err)
	}
	conn, desc, err := r.Export()
	if err == nil {
		err = conn.Connect(desc)
	}
	r.Fail(err)
	if err := engine.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, c := range []interface{ Close() error }{r, engine, memory, dev} {
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// ping
	// pong
}
