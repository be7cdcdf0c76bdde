package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	callCredits = 8   // calls of one client under way at a time
	callSize    = 256 // the largest request or reply, bytes; the smallest is 1
)

// messenger sends messages of one kind. The pool of tasks is made with pe.TaskDone and pe.TaskFailed.
type messenger struct {
	sends  *rdma.Pool
	outbox *bufinv.Pool
}

// send returns when the device of the peer has the message.
func (m *messenger) send(ctx context.Context, conn *rdma.Connection, message []byte, imm uint32) error {
	return await.Task(ctx, conn.Context().Engine(), func() (*rdma.Task, error) {
		b := m.outbox.Alloc()
		if err := b.Append(message); err != nil {
			return nil, errors.Join(err, b.Free())
		}
		return m.sends.SendImm(conn, b, imm)
	}, nil)
}

// caller makes calls, from any number of goroutines. A credit is the number of a call, and
// stands for a receive at the server.
type caller struct {
	messenger
	conn    *rdma.Connection
	credits chan int // the free ones; callCredits at first
	replies [callCredits]chan []byte
	over    chan struct{} // closed when no more replies will come
}

// call sends a request and returns the reply. If ctx ends first, the call goes on without
// its caller, and gives its credit back when the reply has come.
func (c *caller) call(ctx context.Context, request []byte) ([]byte, error) {
	var credit int
	select {
	case credit = <-c.credits:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		reply []byte
		err   error
	}
	done := make(chan result, 1)
	request = bytes.Clone(request) // the caller may be gone before it is sent
	go func() {
		reply, err := c.exchange(credit, request)
		c.credits <- credit
		done <- result{reply, err}
	}()
	select {
	case r := <-done:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// exchange sends a request with a credit, and waits for the reply.
func (c *caller) exchange(credit int, request []byte) ([]byte, error) {
	if err := c.send(context.Background(), c.conn, request, uint32(credit)); err != nil {
		return nil, err
	}
	select {
	case reply := <-c.replies[credit]:
		return reply, nil
	case <-c.over:
		return nil, errors.New("the connection to the server has ended")
	}
}

// collect hands each reply to its call, until the context stops. The inbox has a receive for
// each credit.
func (c *caller) collect(ctx context.Context, inbox *await.Receiver) error {
	defer close(c.over)
	for msg, err := range inbox.Messages(ctx) {
		if err != nil {
			return err
		}
		credit, _ := msg.Imm()
		c.replies[credit] <- bytes.Clone(msg.Bytes())
	}
	return nil
}

// answer replies to requests, one after the other, until the context stops. The inbox has
// callCredits receives for each client, and one more: the receive of a request is posted again
// only when the reply has arrived.
func (m *messenger) answer(ctx context.Context, inbox *await.Receiver, handle func(request []byte) (reply []byte)) error {
	for msg, err := range inbox.Messages(ctx) {
		switch credit, ok := msg.Imm(); {
		case msg == nil:
			return err
		case err == nil && ok:
			_ = m.send(ctx, msg.Connection(), handle(msg.Bytes()), credit) // fails if the client is gone
		}
	}
	return nil
}

func Example_rpc() {
	// Both ends are in one program here, on one engine.
	ctx, stop := context.WithCancel(context.Background())
	engine := pe.New(pe.Config{})
	newMessenger := func(e *end, receives int) (messenger, *await.Receiver, func() error) {
		outbox := must(bufinv.NewPool(e.memory, bufinv.PoolConfig{Count: callCredits, Size: callSize}))
		receiver := must(await.NewReceiver(e.rdma, receives, callSize))
		return messenger{must(e.rdma.Pool(callCredits, pe.TaskDone, pe.TaskFailed)), outbox}, receiver,
			func() error { return errors.Join(receiver.Close(), outbox.Close()) }
	}
	serverEnd := newEnd("soft-lo", 1<<16, rdma.Config{Engine: engine, Name: "server"})
	server, requests, closeServer := newMessenger(serverEnd, callCredits+1)
	clientEnd := newEnd("soft-lo", 1<<16, rdma.Config{Engine: engine, Name: "client", EndWithLastConnection: true})
	client := caller{over: make(chan struct{}), credits: make(chan int, callCredits)}
	var replies *await.Receiver
	var closeClient func() error
	client.messenger, replies, closeClient = newMessenger(clientEnd, callCredits)
	for i := range client.replies {
		client.replies[i] = make(chan []byte, 1)
		client.credits <- i
	}
	client.conn, _ = connect(clientEnd.rdma, serverEnd.rdma)

	stopped := make(chan error)
	go func() { stopped <- engine.Run(ctx) }()
	var serving, calling sync.WaitGroup
	serving.Go(func() { check(server.answer(context.Background(), requests, bytes.ToUpper)) })
	serving.Go(func() { check(client.collect(context.Background(), replies)) })
	check(await.State(ctx, clientEnd.rdma, pe.Running))

	var right atomic.Int64
	for i := range 20 {
		calling.Go(func() {
			for j := range 10 {
				request := fmt.Sprintf("call %d of %d", j, i)
				if string(must(client.call(ctx, []byte(request)))) == fmt.Sprintf("CALL %d OF %d", j, i) {
					right.Add(1)
				}
			}
		})
	}
	calling.Wait()
	fmt.Println(right.Load(), "replies are right")
	stop()
	fmt.Println(<-stopped)
	serving.Wait()
	check(errors.Join(clientEnd.rdma.Close(), serverEnd.rdma.Close(), closeClient(), closeServer()))
	clientEnd.close()
	serverEnd.close()
	// Output:
	// 200 replies are right
	// context canceled
}
