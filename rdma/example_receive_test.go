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
// example stands alone. It makes neither pools nor buffers.
func ExampleContext_Receive() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	r := must(rdma.New(dev, rdma.Config{Engine: engine}))
	memory := must(mmap.Alloc(dev, 4096, mmap.LocalReadOnly))

	send := func(conn *rdma.Connection, text string, at int) {
		n := copy(memory.Bytes()[at:], text)
		shared, err := r.SharedPool()
		if err == nil {
			task, e := shared.Send(conn, bufinv.Source(memory, at, n))
			err = pe.SubmitOrFree(task, e, func(t *rdma.Task, err error) { r.Fail(errors.Join(err, t.Free())) })
		}
		r.Fail(err) // nil does nothing
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
