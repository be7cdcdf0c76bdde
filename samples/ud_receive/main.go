// Command ud_receive receives a datagram from its peer, ud_send, and answers the sender, which
// each message names. The peer repeats a message until the answer arrives, so a message may
// arrive several times.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:      "ud_receive",
		About:     "Receives a datagram from ud_send.",
		Role:      sample.Responder,
		Peer:      "ud_send",
		Transport: verbs.UD,
	}, run)
}

const receives = 16 // posted; a datagram that finds none is lost

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)

	// The engine, and the RDMA context on it, which has an endpoint instead of connections.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.UD, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}})
	if err != nil {
		return err
	}
	s.Peer.EndWith(r) // the context ends with its peer

	// Answers carry no data, and so need no memory.
	answers, err := r.Pool(receives, func(t *rdma.Task) { r.Fail(t.Free()) }, pe.FailContext)
	if err != nil {
		return err
	}
	met, shown := false, false // the message may overtake the peer's descriptor
	end := func() {
		if met && shown {
			s.Peer.Done(nil) // the context ends with the peer
		}
	}
	if err := r.Receive(receives, int(r.Capabilities().MaxSend), func(m *rdma.Message) {
		if !shown {
			shown = true
			r.Fail(s.Show(m.Bytes(), "received: %s")) // Fail(nil) does nothing
			end()
		}
		task, err := answers.Send(m.Peer(), nil)
		r.Fail(pe.SubmitOrFree(task, err))
	}); err != nil {
		return err
	}

	giveUp := func() {
		if !shown {
			r.Fail(fmt.Errorf("no message from ud_send: %w", rdma.ErrTimeout))
		}
	}
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Starting { // exchange endpoints; messages are taken from now on
			s.Peer.Exchange(ctx, r, oob.Offer{}, func(_ *oob.Answer, err error) {
				r.Fail(err)
				met = true
				end()
				time.AfterFunc(s.ConnectTimeout, func() { _ = engine.Do(giveUp) }) // fails when the engine is closed
			})
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
