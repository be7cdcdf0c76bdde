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
	"github.com/verbena-rdma/verbena/verbs"
)

// example is what each of these examples has: memory and a context, which is connected to
// itself, so that no second program is needed.
type example struct {
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	memory *mmap.Map // what tasks read and write here
	remote *mmap.Map // the same memory, as a peer has it
	bufs   bufinv.Inventory
}

func newExample(cfg rdma.Config) *example {
	p := &example{dev: must(device.Open("soft-lo")), engine: pe.New(pe.Config{})}
	cfg.Engine = p.engine
	p.rdma = must(rdma.New(p.dev, cfg))
	p.memory = must(mmap.Alloc(p.dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite|mmap.RemoteRead))
	p.remote = must(mmap.Import(p.dev, must(p.memory.Export(p.dev))))
	return p
}

// run connects the context to itself, calls running when it is, and returns what Run returns.
func (p *example) run(running func(conn *rdma.Connection) error) error {
	var conn *rdma.Connection
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			own, desc, err := p.rdma.Export()
			if err == nil {
				conn = own
				err = conn.Connect(desc)
			}
			p.rdma.Fail(err) // nil does nothing
		case pe.Running:
			p.rdma.Fail(running(conn))
		}
	})
	err := p.rdma.Start()
	return errors.Join(err, p.engine.Run(context.Background()))
}

func (p *example) close() {
	if err := errors.Join(p.rdma.Close(), p.engine.Close(), p.bufs.Close(), p.remote.Close(), p.memory.Close(), p.dev.Close()); err != nil {
		fmt.Println(err)
	}
}

// A context takes nothing from its device before Start, and says what it is made of.
func ExampleContext() {
	dev := must(device.Open("soft-lo"))
	engine := pe.New(pe.Config{})
	r := must(rdma.New(dev, rdma.Config{Engine: engine, Name: "client", MaxConnections: 2}))
	cfg := r.Config() // with all defaults filled in
	fmt.Println(cfg.Path.Port, cfg.Path.MTU, cfg.ConnectTimeout, cfg.Keepalive)
	_, _, err := r.Export()
	fmt.Println(err)

	fmt.Println(r.Start(), r.State()) // Running when the program has been notified of Starting
	_, desc, err := r.Export()
	fmt.Println(len(desc) > 0, err)
	for _, c := range []interface{ Close() error }{r, engine, dev} { // stops it first
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1 4096 1m0s 2s
	// pe: cannot export a connection: context "client" is Idle, and the call is legal only in Starting and Running
	// <nil> Starting
	// true <nil>
}

// A context reports its connections, and goes on when they end.
func ExampleConnection() {
	p := newExample(rdma.Config{})
	defer p.close()
	p.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		fmt.Println("connection", conn.ID(), "is", state, err)
		if state == rdma.Closed {
			_ = p.rdma.Stop() // rather than connect again
		}
	})
	fmt.Println(p.run(func(conn *rdma.Connection) error {
		fmt.Println(conn.PeerAddr() == conn.LocalAddr(), conn.MTU())
		return conn.Close()
	}))
	// Output:
	// connection 0 is Connecting <nil>
	// connection 0 is Ready <nil>
	// true 4096
	// connection 0 is Closed <nil>
	// <nil>
}

// A pool that several connections share can run out. A pe.Waiter calls a function when a task is free.
func ExamplePool() {
	p := newExample(rdma.Config{})
	defer p.close()
	writes := must(p.rdma.Pool(1, pe.FreeTask, pe.FailContext))
	fmt.Println(p.run(func(conn *rdma.Connection) error {
		left := 3
		var waiter *pe.Waiter
		write := func() {
			for ; left > 0; left-- {
				task, err := writes.Write(conn, p.bufs.Source(p.memory, 0, 13), p.bufs.Target(p.remote, 1024, 13))
				if waiter.Wait(err) {
					fmt.Println("waiting, with", left, "to write")
					return // until it is called again
				}
				p.rdma.Fail(pe.SubmitOrFree(task, err))
			}
			_ = p.rdma.StopWhenDone()
		}
		waiter = pe.NewWaiter(write)
		write()
		return nil
	}))
	// Output:
	// waiting, with 2 to write
	// waiting, with 1 to write
	// <nil>
}

// A receive is submitted again after each message, with its buffer emptied.
func ExampleReceiveTask() {
	p := newExample(rdma.Config{})
	defer p.close()
	messages := []string{"one", "two", "three"}
	receives := must(p.rdma.ReceivePool(1,
		func(t *rdma.ReceiveTask) {
			fmt.Printf("%v of %d bytes: %s\n", t.Opcode(), t.Length(), t.Destination().Bytes())
			if messages = messages[1:]; len(messages) == 0 {
				_ = t.Free()
				_ = p.rdma.Stop()
				return
			}
			p.rdma.Fail(t.Submit())
		},
		func(t *rdma.ReceiveTask, err error) { _ = t.Free() }))
	sends := must(p.rdma.Pool(len(messages),
		func(t *rdma.Task) { _ = t.Free() },
		func(t *rdma.Task, err error) {
			_ = t.Free()
			p.rdma.Fail(err)
		}))
	fmt.Println(p.run(func(conn *rdma.Connection) error {
		receive, err := receives.Alloc(p.bufs.Target(p.memory, 2048, 256))
		if err != nil {
			return err
		}
		err = receive.Submit()
		for i, message := range messages { // those without a receive are repeated by the device
			n := copy(p.memory.Bytes()[i*64:], message)
			send, allocErr := sends.Send(conn, p.bufs.Source(p.memory, i*64, n))
			if allocErr != nil {
				return errors.Join(err, allocErr)
			}
			err = errors.Join(err, send.Submit())
		}
		return err
	}))
	// Output:
	// send of 3 bytes: one
	// send of 3 bytes: two
	// send of 5 bytes: three
	// <nil>
}

// Many small writes are given to the device together.
func ExampleSubmitAll() {
	p := newExample(rdma.Config{})
	defer p.close()
	const count = 16
	done := 0
	writes := must(p.rdma.Pool(count,
		func(t *rdma.Task) {
			_ = t.Free()
			if done++; done == count {
				fmt.Printf("%s\n", p.memory.Bytes()[1024:][:count])
				_ = p.rdma.Stop()
			}
		},
		func(t *rdma.Task, err error) {
			_ = t.Free()
			p.rdma.Fail(err)
		}))
	fmt.Println(p.run(func(conn *rdma.Connection) error {
		copy(p.memory.Bytes(), "one byte at once")
		var tasks []*rdma.Task
		for i := range count {
			t, err := writes.Write(conn, p.bufs.Source(p.memory, i, 1), p.bufs.Target(p.remote, 1024+i, 1))
			if err != nil {
				return errors.Join(err, rdma.FreeAll(tasks))
			}
			tasks = append(tasks, t)
		}
		n, err := rdma.SubmitAll(tasks, pe.OptimizeReports)
		return errors.Join(err, rdma.FreeAll(tasks[n:])) // those that were not submitted
	}))
	// Output:
	// one byte at once
	// <nil>
}

// A message that meets no receive fails here at once, since RNRRetry says so. A task that
// fails ends its connection; the context goes on, until the program stops it.
func ExampleTaskError() {
	p := newExample(rdma.Config{RNRRetry: rdma.None})
	defer p.close()
	sends := must(p.rdma.Pool(1,
		func(t *rdma.Task) { _ = t.Free() },
		func(t *rdma.Task, err error) {
			_ = t.Free()
			fmt.Println(errors.Is(err, rdma.ErrRNRRetryExceeded))
			var failed *rdma.TaskError
			if errors.As(err, &failed) {
				fmt.Println(failed.Op, "on connection", failed.Connection.ID(), "failed:", failed.Status)
			}
			_ = p.rdma.Stop()
		}))
	fmt.Println(p.run(func(conn *rdma.Connection) error {
		t, err := sends.Send(conn, p.bufs.Source(p.memory, 0, 8))
		if err != nil {
			return err
		}
		return t.Submit()
	}))
	// Output:
	// true
	// send on connection 0 failed: receiver-not-ready retry count exceeded
	// <nil>
}
