package oob_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// write writes to the memory of the program "reader". It is a whole program but for
// its main function.
func write(way, text string) (err error) {
	peer, err := oob.Open(way, oob.Config{Name: "writer", Peer: "reader", Expect: &oob.Expect{Maps: 1}})
	if err != nil {
		return err
	}
	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }() // closes the memory too
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }() // closes the context too
	r, err := rdma.New(dev, rdma.Config{Engine: engine, EndWithLastConnection: true})
	if err != nil {
		return err
	}
	local, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	copy(local.Bytes(), text)
	var bufs bufinv.Inventory
	writes, err := r.Pool(1, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	written := func(task *rdma.Task, err error) {
		r.Fail(errors.Join(err, task.Free())) // nil does nothing
		r.Stop()
	}
	var conn *rdma.Connection
	var remote *mmap.Map
	r.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			peer.Connect(r, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; r.Fail(err) })
		case pe.Running:
			task, err := writes.Write(conn, bufs.Source(local, 0, len(text)), bufs.Target(remote, 0, len(text)))
			r.Fail(pe.SubmitOrFree(task, err, written))
		}
	})
	if err := r.Start(); err != nil {
		return err
	}
	err = engine.Run(context.Background())
	return errors.Join(err, peer.Close(err))
}

// read lets the program "writer" write to its memory, and prints it when that has
// ended.
func read(way string) (err error) {
	peer, err := oob.Open(way, oob.Config{Name: "reader", Peer: "writer", Role: oob.Responder})
	if err != nil {
		return err
	}
	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	memory, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	peer.EndWith(r) // if it dies
	r.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			peer.Connect(r, nil, memory) // an error ends the context
		case pe.Running:
			peer.Done(func(err error) {
				if err == nil {
					fmt.Printf("was written: %s\n", memory.Bytes()[:13])
				}
				r.Fail(err)
				r.Stop()
			})
		}
	})
	if err := r.Start(); err != nil {
		return err
	}
	err = engine.Run(context.Background())
	return errors.Join(err, peer.Close(err))
}

// Two programs that find each other through a folder. Here both are in one process.
func Example() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	written := make(chan error)
	go func() { written <- write("dir:"+folder, "over the wire") }()
	if err := errors.Join(read("dir:"+folder), <-written); err != nil {
		fmt.Println(err)
	}
	// Output: was written: over the wire
}

func ExampleParse() {
	for _, text := range []string{"dir:/mnt/shared", "tcp:host-a:7471", "pigeon"} {
		way, err := oob.Parse(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(way)
	}
	// Output:
	// the folder /mnt/shared
	// tcp:host-a:7471
	// invalid argument: way "pigeon" is none of dir, dir:PATH, tcp:HOST:PORT, cm:HOST:PORT and stdio
}

// A server that takes any number of clients. Each of them opens a Peer, as in the other
// example, with the server's name for Peer and the way "tcp:HOST:7471".
func ExampleListen() {
	dev, err := device.Open("soft-lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	engine := pe.New(pe.Config{})
	defer engine.Close()
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	clients, err := oob.Listen("tcp:127.0.0.1:0", oob.Config{Name: "server"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer clients.Close()
	err = clients.Serve(r, oob.Offer{Data: []byte("welcome")}, func(client string, a *oob.Answer) error {
		fmt.Println(client, "is being connected:", a.Connections[0])
		return nil
	})
	fmt.Println(errors.Join(err, r.Start()))
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a server would serve until a signal comes
	fmt.Println(engine.Run(ctx))
	// Output:
	// <nil>
	// context canceled
}
