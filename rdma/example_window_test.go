package rdma_test

import (
	"fmt"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

// Part of a memory map is lent, written to, and taken back.
func ExampleWindow() {
	p := newExample(rdma.Config{})
	defer p.close()
	shared := must(mmap.Alloc(p.dev, 4096, mmap.LocalReadWrite|mmap.BindWindows))
	defer shared.Close()
	windows := must(p.rdma.WindowPool(1))
	var window *rdma.Window
	writes := must(p.rdma.Pool(1,
		func(t *rdma.Task) {
			fmt.Printf("%s\n", shared.Bytes()[1024:1029])
			p.rdma.Fail(t.Free())
			p.rdma.Fail(window.Invalidate(func(err error) {
				fmt.Println("taken back:", err == nil && !window.Bound())
				p.rdma.Fail(window.Free())
				p.rdma.Stop()
			}))
		},
		func(t *rdma.Task, err error) { p.rdma.Fail(err) }))
	err := p.run(func(conn *rdma.Connection) (err error) {
		if window, err = windows.Alloc(conn); err != nil {
			return err
		}
		if err := window.Bind(shared, 1024, 1024, mmap.RemoteWrite, func(err error) { p.rdma.Fail(err) }); err != nil {
			return err
		}
		desc, err := window.Export() // for the peer, which is this program
		if err != nil {
			return err
		}
		lent, err := mmap.Import(p.dev, desc)
		if err != nil {
			return err
		}
		fmt.Println(lent.Len(), lent.Permissions())
		copy(p.memory.Bytes(), "hello")
		task, err := writes.Write(conn, p.bufs.Source(p.memory, 0, 5), p.bufs.Target(lent, 0, 5))
		if err != nil {
			return err
		}
		return task.Submit()
	})
	fmt.Println(err)
	// Output:
	// 1024 RemoteWrite
	// hello
	// taken back: true
	// <nil>
}

// A pool has as many windows as are lent at a time.
func ExampleWindowPool() {
	p := newExample(rdma.Config{})
	defer p.close()
	windows, err := p.rdma.WindowPool(4)
	fmt.Println(windows.Cap(), windows.Available(), err)
	// Output: 4 4 <nil>
}
