// Command ud_send sends a datagram to its peer, ud_receive. Datagrams may be lost silently, so
// it repeats the message until the peer answers. Neither side makes a connection: one endpoint
// exchanges messages with any number of peers.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:      "ud_send",
		About:     "Sends a datagram to ud_receive.",
		Role:      sample.Requester,
		Peer:      "ud_receive",
		Transport: verbs.UD,
		Text:      &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
	}, run)
}

const (
	answerTimeout = 200 * time.Millisecond // after which the message is sent again
	mostSends     = 16                     // at a time
)

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close) // and the memory with it

	// Memory for the message.
	text := s.Payload()
	local, err := mmap.Alloc(dev, len(text), mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	copy(local.Bytes(), text)

	// The engine, and the RDMA context on it, which has an endpoint instead of connections.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.UD, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}

	// A send completes when the datagram has left. Only an answer shows that it arrived.
	sends, err := r.Pool(mostSends, func(t *rdma.Task) { r.Fail(t.Free()) }, pe.FailContext)
	if err != nil {
		return err
	}
	if err := r.Receive(mostSends, 0, func(*rdma.Message) {
		if r.State() == pe.Running { // the first answer
			s.Print("sent: %s", sample.Describe(text))
		}
		r.Stop()
	}); err != nil {
		return err
	}

	var peer *rdma.Peer
	var giveUp time.Time
	var send func()
	send = func() {
		switch {
		case r.State() != pe.Running: // the answer has arrived
			return
		case time.Now().After(giveUp):
			r.Fail(fmt.Errorf("%v does not answer: %w", peer, rdma.ErrTimeout))
			return
		}
		task, err := sends.Send(peer, bufinv.Source(local, 0, len(text)))
		r.Fail(pe.SubmitOrFree(task, err))
		time.AfterFunc(answerTimeout, func() { _ = engine.Do(send) }) // fails when the engine is closed
	}
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next != pe.Running { // an endpoint is Running at once
			return
		}
		s.Peer.Exchange(ctx, r, oob.Offer{}, func(a *oob.Answer, err error) {
			if r.Fail(err); err != nil {
				return
			}
			peer, giveUp = a.Peer, time.Now().Add(s.ConnectTimeout)
			send()
		})
	})
	r.Fail(r.Start())      // Fail(nil) does nothing
	return engine.Run(ctx) // until the context is Idle
}
