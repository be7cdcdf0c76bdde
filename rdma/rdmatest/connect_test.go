package rdmatest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client and a server in one program, without descriptors.
func ExampleConnect() {
	dev := must(device.Open("soft-lo"))
	memory := must(mmap.Alloc(dev, 64, mmap.LocalReadWrite))
	n := copy(memory.Bytes(), "hello")
	engine := pe.New(pe.Config{})
	client := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "client"}))
	server := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "server", EndWithLastConnection: true}))
	sends := must(client.Pool(1, pe.FreeTask, pe.FailContext))
	err := server.Receive(1, 64, func(m *rdma.Message) { fmt.Printf("%s\n", m.Bytes()) })

	if err = errors.Join(err, client.Start(), server.Start()); err != nil {
		fmt.Println(err)
	}
	conn, _, err := rdmatest.Connect(client, server)
	client.Fail(err) // nil does nothing
	client.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			task, err := sends.Send(conn, bufinv.Source(memory, 0, n))
			client.Fail(pe.SubmitOrFree(task, err))
			client.Fail(client.StopWhenDone())
		}
	})
	fmt.Println(engine.Run(context.Background()))
	if err := errors.Join(engine.Close(), dev.Close()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// hello
	// <nil>
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}
