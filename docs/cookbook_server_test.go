package docs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// maxClients is how many clients a server has at a time.
const maxClients = 16

// server takes messages of clients that come and go.
type server struct {
	rdma   *rdma.Connections
	handle func(client *rdma.Connection, message []byte)
	left   func(client *rdma.Connection, reason error)
}

// prepare receives messages of up to size bytes from all clients, and follows their
// connections. It is called while the context is Idle.
func (s *server) prepare(receives, size int) error {
	s.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Failed: // the client died, or a request of it was refused
			_ = conn.Close() // gives its place to the next client
		case rdma.Closed:
			s.left(conn, conn.Err())
		}
	})
	return s.rdma.Receive(receives, size, func(m *rdma.Message) { s.handle(m.Connection(), m.Bytes()) })
}

// accept connects a client by its descriptor, and returns the descriptor for the client. Any
// goroutine may call it, such as one that serves HTTP.
func (s *server) accept(ctx context.Context, theirs []byte) (ours []byte, err error) {
	err = await.Func(ctx, s.rdma.Engine(), func() error {
		conn, desc, err := s.rdma.Export()
		if err != nil {
			return err // rdma.ErrFull: there are maxClients
		}
		if err := conn.Connect(theirs); err != nil {
			return errors.Join(err, conn.Close())
		}
		ours = desc
		return nil
	})
	return ours, err
}

// visit is a client: it connects, sends a message, and leaves. A client that dies does
// not say so.
func visit(accept func(theirs []byte) (ours []byte, err error), message string, dies bool) {
	cfg := rdma.Config{}
	if dies {
		cfg.CloseTimeout = rdma.None // no disconnect notice
	}
	e := newEnd("soft-lo", 4096, cfg)
	defer e.close()
	sends := must(e.rdma.Pool(1,
		func(t *rdma.Task) { check(errors.Join(t.Free(), e.rdma.Stop())) },
		func(t *rdma.Task, err error) {
			_ = t.Free()
			e.rdma.Fail(err)
		}))
	var conn *rdma.Connection
	e.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			n := copy(e.memory.Bytes(), message)
			check(must(sends.Send(conn, e.bufs.Source(e.memory, 0, n))).Submit())
		}
	})
	check(e.rdma.Start())
	conn, desc, err := e.rdma.Export()
	check(err)
	check(conn.Connect(must(accept(desc))))
	check(e.engine.Run(context.Background()))
}

func Example_server() {
	events := make(chan string, 8)
	e := newEnd("soft-lo", 4096, rdma.Config{MaxConnections: maxClients, Keepalive: 100 * time.Millisecond})
	s := &server{
		rdma:   e.rdma,
		handle: func(_ *rdma.Connection, message []byte) { events <- string(message) },
		left: func(_ *rdma.Connection, reason error) {
			switch {
			case errors.Is(reason, rdma.ErrPeerClosed):
				events <- "it has left"
			case errors.Is(reason, rdma.ErrRetryExceeded):
				events <- "it has died"
			}
		},
	}
	check(s.prepare(64, 256))
	check(e.rdma.Start())

	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- e.engine.Run(ctx) }() // the context stays Running without clients
	accept := func(theirs []byte) ([]byte, error) { return s.accept(ctx, theirs) }
	visit(accept, "from the first client", false)
	fmt.Println(<-events)
	fmt.Println(<-events)
	visit(accept, "from the second client", true)
	fmt.Println(<-events)
	fmt.Println(<-events)
	visit(accept, "from the third client", false)
	fmt.Println(<-events)
	fmt.Println(<-events)
	stop()
	fmt.Println(<-stopped)
	e.close()
	// Output:
	// from the first client
	// it has left
	// from the second client
	// it has died
	// from the third client
	// it has left
	// context canceled
}
