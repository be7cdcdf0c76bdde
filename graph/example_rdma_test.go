package graph_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Two blocks are read from a peer at the same time and compared; the first is
// written back if they are equal. The program is its own peer here, so that the
// example stands alone, and waits for the runs rather than being called back.
func ExampleTask() {
	if err := compare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	// Output:
	// equal: true, third block: "same"
	// equal: false, not run: write
}

// comparison is the value that one run of the graph works on: where the two blocks
// are at the peer.
type comparison struct {
	first, second int
	equal         bool
}

func compare() (err error) {
	const block = 4
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	closing := func(c interface{ Close() error }) { err = errors.Join(err, c.Close()) }

	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	defer closing(dev)
	access := mmap.RemoteRead | mmap.RemoteWrite
	memory, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|access)
	if err != nil {
		return err
	}
	defer closing(memory)
	desc, err := memory.Export(dev)
	if err != nil {
		return err
	}
	remote, err := mmap.Import(dev, desc)
	if err != nil {
		return err
	}
	defer closing(remote)
	bufs, err := bufinv.New(4)
	if err != nil {
		return err
	}
	defer closing(bufs)
	engine := pe.New(pe.Config{})
	defer closing(engine)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Permissions: access})
	if err != nil {
		return err
	}
	defer closing(r)
	reads, err := r.Pool(2, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	writes, err := r.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}

	// Here, the blocks are at 1024 and 2048; at the peer, where the value says.
	var conn *rdma.Connection
	local := memory.Bytes()
	b := graph.NewBuilder[*comparison]("compare")
	first := graph.Task(b, "read the first", func(c *comparison) (*rdma.Task, error) {
		return reads.Read(conn, bufs.Source(remote, c.first, block), bufs.Target(memory, 1024, block))
	}, nil)
	second := graph.Task(b, "read the second", func(c *comparison) (*rdma.Task, error) {
		return reads.Read(conn, bufs.Source(remote, c.second, block), bufs.Target(memory, 2048, block))
	}, nil)
	check := b.Func("check", func(c *comparison) error {
		c.equal = bytes.Equal(local[1024:1024+block], local[2048:2048+block])
		if !c.equal {
			return errors.New("the blocks differ")
		}
		return nil
	})
	write := graph.Task(b, "write", func(c *comparison) (*rdma.Task, error) {
		return writes.Write(conn, bufs.Source(memory, 1024, block), bufs.Target(remote, 3072, block))
	}, nil)
	b.Edge(first, check)
	b.Edge(second, check)
	b.Edge(check, write)
	g, err := b.Build()
	if err != nil {
		return err
	}
	defer closing(g)
	runs, err := g.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}

	if err := engine.Connect(g); err != nil {
		return err
	}
	if err := errors.Join(g.Start(), r.Start()); err != nil {
		return err
	}
	conn, desc, err = r.Export()
	if err != nil {
		return err
	}
	if err := conn.Connect(desc); err != nil {
		return err
	}
	driving, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- engine.Run(driving) }()
	defer func() {
		stop()
		<-stopped
	}()
	if err := await.State(ctx, r, pe.Running); err != nil {
		return err
	}

	copy(local, "same....same....else")
	run := func(c *comparison) error {
		return await.Task(ctx, engine, func() (*graph.Instance[*comparison], error) { return runs.Alloc(c) }, nil)
	}
	c := &comparison{first: 0, second: 8}
	if err := run(c); err != nil {
		return err
	}
	fmt.Printf("equal: %v, third block: %q\n", c.equal, local[3072:3072+block])

	c = &comparison{first: 0, second: 16}
	var failed *graph.RunError
	if err := run(c); !errors.As(err, &failed) {
		return err
	}
	fmt.Printf("equal: %v, not run: %s\n", c.equal, failed.NotRun[0])
	return nil
}
