package await_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// A program that writes to memory, and then sends three messages that it receives
// itself: it is its own peer here, so that the example stands alone.
func Example() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	// Output:
	// written: over the wire
	// "one" 1
	// "two" 2
	// "three" 3
}

func run() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	closing := func(c interface{ Close() error }) { err = errors.Join(err, c.Close()) }

	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	defer closing(dev)
	memory, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	defer closing(memory)
	engine := pe.New(pe.Config{})
	defer closing(engine)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Permissions: mmap.RemoteWrite})
	if err != nil {
		return err
	}
	defer closing(r)
	receiver, err := await.NewReceiver(r, 2, 64)
	if err != nil {
		return err
	}
	defer closing(receiver)

	// From here on the engine belongs to the goroutine that drives it.
	driving, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- await.Run(driving, engine) }()
	defer func() {
		stop()
		<-stopped
	}()

	var conn *rdma.Connection
	err = await.Func(ctx, engine, func() error {
		if err := r.Start(); err != nil {
			return err
		}
		own, desc, err := r.Export()
		if err != nil {
			return err
		}
		conn = own
		return conn.Connect(desc)
	})
	if err != nil {
		return err
	}
	if err := await.State(ctx, r, pe.Running); err != nil {
		return err
	}
	desc, err := memory.Export(dev)
	if err != nil {
		return err
	}
	remote, err := mmap.Import(dev, desc)
	if err != nil {
		return err
	}
	defer closing(remote)

	copy(memory.Bytes()[1024:], "over the wire")
	if err := await.Write(ctx, conn, bufinv.Source(memory, 1024, 13), bufinv.Target(remote, 2048, 13)); err != nil {
		return err // if it is an *await.Pending, the memory is still in use
	}
	fmt.Printf("written: %s\n", memory.Bytes()[2048:2061])

	sent := make(chan error, 1)
	go func() {
		var err error
		for i, word := range []string{"one", "two", "three"} {
			n := copy(memory.Bytes()[3072:], word)
			err = errors.Join(err, await.SendImm(ctx, conn, bufinv.Source(memory, 3072, n), uint32(i+1)))
		}
		sent <- err
	}()
	for msg, err := range receiver.Messages(ctx) {
		if err != nil {
			return err
		}
		imm, _ := msg.Imm()
		fmt.Printf("%q %d\n", msg.Bytes(), imm)
		if imm == 3 {
			break
		}
	}
	if err := <-sent; err != nil {
		return err
	}
	return await.Stop(ctx, r)
}
