package await_test

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
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Datagrams: a client asks a server, and asks again while no answer comes, since either
// message may be lost. Both are in one program here, so that the example stands alone.
func Example_datagrams() {
	if err := questions(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	// Output:
	// one? ONE
	// two? TWO
}

func questions() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dev, err := device.Open("soft-lo")
	if err != nil {
		return err
	}
	engine := pe.New(pe.Config{})
	server, err := newEndpoint(dev, engine)
	if err != nil {
		return err
	}
	client, err := newEndpoint(dev, engine)
	if err != nil {
		return err
	}
	driving, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- await.Run(driving, engine) }()
	served := make(chan error, 1)
	go func() { served <- server.serve(ctx) }()
	defer func() {
		err = errors.Join(err, await.Stop(ctx, server.Datagrams), await.Stop(ctx, client.Datagrams), <-served)
		stop()
		<-stopped
		for _, c := range []interface{ Close() error }{server.receiver, client.receiver, server, client, engine, server.memory, client.memory, dev} {
			err = errors.Join(err, c.Close())
		}
	}()

	if err := errors.Join(await.Start(ctx, server.Datagrams), await.Start(ctx, client.Datagrams)); err != nil {
		return err
	}
	// A peer is made on the engine's goroutine, of a descriptor that travels in any way.
	var peer *rdma.Peer
	err = await.Func(ctx, engine, func() error {
		desc, err := server.ExportEndpoint()
		if err != nil {
			return err
		}
		peer, err = client.NewPeer(desc)
		return err
	})
	if err != nil {
		return err
	}
	for number, question := range []string{"one", "two"} {
		answer, err := client.ask(ctx, peer, question, uint32(number))
		if err != nil {
			return err
		}
		fmt.Printf("%s? %s\n", question, answer)
	}
	return nil
}

// endpoint is a context of datagrams with a receiver and memory to send from.
type endpoint struct {
	*rdma.Datagrams
	receiver *await.Receiver
	memory   *mmap.Map
}

const datagramSize = 64

func newEndpoint(dev verbs.Device, engine *pe.Engine) (e *endpoint, err error) {
	e = &endpoint{}
	if e.Datagrams, err = rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.UD}); err != nil {
		return nil, err
	}
	if e.memory, err = mmap.Alloc(dev, datagramSize, mmap.LocalReadWrite); err != nil {
		return nil, err
	}
	e.receiver, err = await.NewReceiver(e.Datagrams, 16, datagramSize)
	return e, err
}

// send returns when the message has left.
func (e *endpoint) send(ctx context.Context, to *rdma.Peer, text []byte, number uint32) error {
	n := copy(e.memory.Bytes(), text)
	return await.SendImm(ctx, to, bufinv.Source(e.memory, 0, n), number)
}

// serve answers until the context is stopped. A message names its sender.
func (e *endpoint) serve(ctx context.Context) error {
	for question, err := range e.receiver.Messages(ctx) {
		if err != nil {
			return err
		}
		number, _ := question.Imm()
		err = e.send(ctx, question.Peer(), bytes.ToUpper(question.Bytes()), number)
		if err != nil && e.State() == pe.Running {
			return err
		}
	}
	return nil
}

// ask sends a question until its answer has come, which has the same number.
func (e *endpoint) ask(ctx context.Context, peer *rdma.Peer, question string, number uint32) (string, error) {
	for {
		if err := e.send(ctx, peer, []byte(question), number); err != nil {
			return "", err
		}
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		for {
			answer, err := e.receiver.Receive(attempt)
			if err != nil {
				cancel()
				if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
					break // question or answer is lost: ask again
				}
				return "", err
			}
			if got, _ := answer.Imm(); got == number { // not the second answer to an earlier one
				cancel()
				return string(answer.Bytes()), nil
			}
		}
	}
}
