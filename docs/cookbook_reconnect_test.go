package docs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// recordSize is the size of a record, bytes.
const recordSize = 64

// address is what a program needs to connect to another and to write to its memory.
type address struct{ conn, memory []byte }

// recorder writes records to a server. When the server dies, it connects to the next one, and
// writes the records that were not acknowledged.
type recorder struct {
	end     *end
	dial    func(ctx context.Context, ours []byte) (address, error) // waits for a server
	written func(record int)
	writes  *rdma.Pool // as many tasks as records under way
	conn    *rdma.Connection
	remote  *mmap.Map
	waiting []int // records to write when there is a connection
}

// prepare makes the tasks, and connects again whenever the connection has ended.
func (c *recorder) prepare(ctx context.Context, records int) (err error) {
	c.writes, err = c.end.rdma.Pool(records,
		func(t *rdma.Task) {
			record := t.UserData().(int)
			_ = t.Free()
			c.written(record)
		},
		func(t *rdma.Task, err error) { // the connection ends too
			c.waiting = append(c.waiting, t.UserData().(int))
			_ = t.Free() // releases the old server's memory
		})
	c.end.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			c.connect(ctx)
		}
	})
	c.end.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			records := c.waiting
			c.waiting = nil
			for _, record := range records {
				c.write(record)
			}
		case rdma.Failed:
			_ = conn.Close()
		case rdma.Closed: // all tasks have come back
			if c.remote != nil {
				c.end.rdma.Fail(c.remote.Close())
			}
			c.conn, c.remote = nil, nil
			c.connect(ctx)
		}
	})
	return err
}

// connect begins a new connection. It runs on the engine's goroutine, and waits for a server
// on another one.
func (c *recorder) connect(ctx context.Context) {
	if c.end.rdma.State() != pe.Running {
		return // the program is stopping
	}
	conn, ours, err := c.end.rdma.Export()
	if err != nil {
		c.end.rdma.Fail(err)
		return
	}
	go func() {
		server, err := c.dial(ctx, ours)
		_ = c.end.engine.Do(func() {
			if err == nil {
				c.remote, err = mmap.Import(c.end.dev, server.memory)
			}
			if err == nil {
				c.conn = conn
				err = conn.Connect(server.conn)
			}
			c.end.rdma.Fail(err)
		})
	}()
}

// write writes a record now, or as soon as there is a connection.
func (c *recorder) write(record int) {
	if c.conn == nil || c.conn.State() != rdma.Ready {
		c.waiting = append(c.waiting, record)
		return
	}
	at := record * recordSize
	t, err := c.writes.Write(c.conn, c.end.bufs.Source(c.end.memory, at, recordSize), c.end.bufs.Target(c.remote, at, recordSize))
	if err != nil {
		c.end.rdma.Fail(err)
		return
	}
	t.SetUserData(record)
	if err := t.Submit(); err != nil {
		c.end.rdma.Fail(errors.Join(err, t.Free()))
	}
}

// recordServer is memory that one client writes to.
type recordServer struct {
	*end
	stopped chan error
}

// kill ends the server without a word to its peers.
func (s *recordServer) kill() {
	check(s.engine.Do(func() { check(s.rdma.Stop()) }))
	check(<-s.stopped)
	s.close()
}

func startRecordServer(clients <-chan []byte, addresses chan<- address) *recordServer {
	s := &recordServer{newEnd("soft-lo", 4096, rdma.Config{CloseTimeout: rdma.None}), make(chan error)}
	check(s.rdma.Start())
	conn, desc, err := s.rdma.Export()
	check(err)
	check(conn.Connect(<-clients))
	addresses <- address{desc, must(s.memory.Export(s.dev))}
	go func() { s.stopped <- s.engine.Run(context.Background()) }()
	return s
}

func Example_reconnect() {
	clients, addresses := make(chan []byte), make(chan address)
	dialing, written := make(chan bool, 8), make(chan int, 8)
	c := &recorder{
		end: newEnd("soft-lo", 4096, rdma.Config{Keepalive: 100 * time.Millisecond}),
		dial: func(ctx context.Context, ours []byte) (address, error) {
			dialing <- true
			select {
			case clients <- ours:
				return <-addresses, nil
			case <-ctx.Done():
				return address{}, context.Cause(ctx)
			}
		},
		written: func(record int) { written <- record },
	}
	ctx, stop := context.WithCancel(context.Background())
	check(c.prepare(ctx, 8))
	copy(c.end.memory.Bytes(), "the first record")
	copy(c.end.memory.Bytes()[recordSize:], "the second record")
	check(c.end.rdma.Start())
	stopped := make(chan error)
	go func() { stopped <- c.end.engine.Run(ctx) }()
	check(c.end.engine.Do(func() { c.write(0) }))
	<-dialing
	server := startRecordServer(clients, addresses)
	fmt.Println("written:", <-written)
	server.kill()
	check(c.end.engine.Do(func() { c.write(1) }))
	<-dialing // the first server is missed
	server = startRecordServer(clients, addresses)
	fmt.Println("written:", <-written)
	fmt.Printf("%s\n", server.memory.Bytes()[recordSize:][:17])
	stop()
	fmt.Println(<-stopped)
	server.kill()
	c.end.close()
	// Output:
	// written: 0
	// written: 1
	// the second record
	// context canceled
}
