package docs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// maxClients is how many clients a server has at a time.
const maxClients = 16

// server takes messages of clients that come and go.
type server struct {
	rdma   *rdma.Context
	handle func(client *rdma.Connection, message []byte)
	left   func(client *rdma.Connection, reason error)
}

// prepare makes the receives: one for each buffer of the inbox. They belong to no
// connection, so they stay when clients go. It is called while the context is Idle.
func (s *server) prepare(inbox *bufinv.Pool) error {
	receives, err := s.rdma.ReceivePool(inbox.Total(),
		func(t *rdma.ReceiveTask) {
			s.handle(t.Connection(), t.Destination().Bytes())
			s.repost(t)
		},
		func(t *rdma.ReceiveTask, err error) { s.repost(t) }) // the connection has failed, not the server
	if err != nil {
		return err
	}
	s.rdma.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		for range inbox.Total() {
			t, err := receives.Alloc(inbox.Alloc())
			if err != nil {
				s.rdma.Fail(err)
				return
			}
			s.repost(t)
		}
	})
	s.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Failed: // the client died, or did something that is not allowed
			_ = conn.Close() // gives its place to the next client
		case rdma.Closed:
			s.left(conn, conn.Err())
		}
	})
	return nil
}

// repost submits a receive again.
func (s *server) repost(t *rdma.ReceiveTask) {
	if t.Submit() != nil {
		_ = t.Free() // the server is stopping
	}
}

// accept makes a connection for a client, whose descriptor it is given, and returns the
// descriptor for the client. Any goroutine may call it, such as one that serves HTTP.
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
		cfg.CloseTimeout = -1 // no goodbye
	}
	e := newEnd("soft-lo", 4096, cfg)
	defer e.close()
	sends := must(e.rdma.SendPool(1,
		func(t *rdma.SendTask) { check(errors.Join(t.Free(), e.rdma.Stop())) },
		func(t *rdma.SendTask, err error) {
			_ = t.Free()
			e.rdma.Fail(err)
		}))
	var conn *rdma.Connection
	e.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			n := copy(e.memory.Bytes(), message)
			check(must(sends.Alloc(conn, e.bufs.Source(e.memory, 0, n))).Submit())
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
	e := newEnd("soft-lo", 64*256, rdma.Config{MaxConnections: maxClients, Keepalive: 100 * time.Millisecond})
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
	inbox := must(bufinv.NewPool(e.memory, bufinv.PoolConfig{Count: 64, Size: 256}))
	check(s.prepare(inbox))
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
	check(errors.Join(e.rdma.Close(), inbox.Close()))
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
