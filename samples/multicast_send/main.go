// Command multicast_send sends a datagram to a multicast group, which any number of
// multicast_receive have joined, on this host or on others. Datagrams may be lost silently, so
// it repeats the message until as many receivers as expected have answered.
package main

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	group, receivers := "239.255.18.1", uint64(1)
	sample.Main(sample.Program{
		Name: "multicast_send", About: "Sends a datagram to a multicast group.", Device: "soft-lo",
		Text: &sample.Text{Short: "s", Long: "send-string", Default: "Hello from the sender!"},
		Flags: func(f *sample.Flags) {
			f.String(&group, "mg", "multicast-group", "address", "the group, IPv4 or IPv6")
			f.Uint64(&receivers, "n", "receivers", "number", "the number of receivers that must answer")
		},
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, group, int(receivers)) })
}

const (
	answerTimeout = 200 * time.Millisecond // after which the message is sent again
	mostSends     = 16                     // at a time
	mostAnswers   = 256                    // that are received at a time; other receivers answer a later message
)

func run(ctx context.Context, s *sample.Session, group string, receivers int) (err error) {
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
	answered := make(map[rdma.EndpointAddr]bool)
	if err := r.Receive(mostAnswers, 0, func(m *rdma.Message) {
		answered[m.Peer().Addr()] = true // receivers answer every message
		if len(answered) == receivers && r.State() == pe.Running {
			s.Print("sent: %s", sample.Describe(text))
			r.Stop()
		}
	}); err != nil {
		return err
	}

	var all *rdma.Peer // the members of the group
	var send func()
	send = func() {
		if r.State() != pe.Running { // all answers have arrived
			return
		}
		task, err := sends.Send(all, bufinv.Source(local, 0, len(text)))
		r.Fail(pe.SubmitOrFree(task, err))
		time.AfterFunc(answerTimeout, func() { _ = engine.Do(send) }) // fails when the engine is closed
	}
	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next != pe.Running { // an endpoint is Running at once
			return
		}
		r.Fail(r.JoinMulticast(group, rdma.MulticastConfig{SendOnly: true}, func(g *rdma.MulticastGroup, err error) {
			if r.Fail(err); err == nil {
				all = g.Peer()
				send()
				s.Say("waiting for %d receivers of group %s to answer", receivers, group)
			}
		}))
	})
	r.Fail(r.Start())      // Fail(nil) does nothing
	return engine.Run(ctx) // until the context is Idle
}
