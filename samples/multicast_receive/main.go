// Command multicast_receive joins a multicast group, receives a datagram that multicast_send
// sends to it, and answers the sender. Any number of receivers can be in a group, on this host
// and on others. The sender repeats a message until all have answered, so a message may arrive
// several times.
package main

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	group := "239.255.18.1"
	sample.Main(sample.Program{
		Name: "multicast_receive", About: "Receives a datagram that is sent to a multicast group.", Device: "soft-lo",
		Flags: func(f *sample.Flags) {
			f.String(&group, "mg", "multicast-group", "address", "the group, IPv4 or IPv6")
		},
	}, func(ctx context.Context, s *sample.Session) error { return run(ctx, s, group) })
}

const (
	receives = 16          // posted; a datagram that finds none is lost
	quiet    = time.Second // after so long without a repetition the sender has the answer
)

func run(ctx context.Context, s *sample.Session, group string) (err error) {
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

	// Answers carry no data, and so need no memory.
	answers, err := r.Pool(receives, func(t *rdma.Task) { r.Fail(t.Free()) }, pe.FailContext)
	if err != nil {
		return err
	}
	var end *time.Timer // nil: nothing has arrived
	if err := r.Receive(receives, int(r.Capabilities().MaxSend), func(m *rdma.Message) {
		if r.State() != pe.Running { // the context has stopped: no repetition came
			return
		}
		if end == nil {
			r.Fail(s.Show(m.Bytes(), "received: %s"))                                  // Fail(nil) does nothing
			end = time.AfterFunc(quiet, func() { _ = engine.Do(func() { r.Stop() }) }) // fails when the engine is closed
		}
		end.Reset(quiet)
		task, err := answers.Send(m.Peer(), nil)
		r.Fail(pe.SubmitOrFree(task, err))
	}); err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Running { // an endpoint is Running at once; messages are taken from now on
			r.Fail(r.JoinMulticast(group, rdma.MulticastConfig{}, func(g *rdma.MulticastGroup, err error) {
				if r.Fail(err); err == nil {
					s.Log.Info().Stringer("group", g).Msg("joined")
				}
			}))
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle; it leaves the group before
}
