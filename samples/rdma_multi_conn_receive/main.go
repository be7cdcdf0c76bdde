// Command rdma_multi_conn_receive receives one message over each of several connections from
// its peer, rdma_multi_conn_send. Receives are not tied to a connection: all connections of
// the context share them, and each message names its connection.
package main

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

func main() {
	sample.Main(sample.Program{
		Name:           "rdma_multi_conn_receive",
		About:          "Receives a message from rdma_multi_conn_send over each of several connections.",
		Role:           sample.Responder,
		Peer:           "rdma_multi_conn_send",
		MaxConnections: 8,
	}, run)
}

func run(ctx context.Context, s *sample.Session) (err error) {
	dev, err := device.Open(s.Device)
	if err != nil {
		return err
	}
	defer sample.Close(&err, dev.Close)
	if err := rdma.Supports(dev, rdma.OpReceive); err != nil {
		return err
	}

	// The engine, and the RDMA context on it.
	engine := pe.New(pe.Config{Log: s.Log})
	defer sample.Close(&err, engine.Close) // and the context with it
	r, err := rdma.New(dev, rdma.Config{Engine: engine, Path: rdma.PathConfig{GIDIndex: s.GIDIndex}, ConnectTimeout: s.ConnectTimeout,
		MaxConnections: s.Connections})
	if err != nil {
		return err
	}
	s.EndWithPeer(r) // the context ends with its peer

	// A receive for each connection, in the context's own memory, which the peer cannot
	// access. The receives are posted before the first connection is made.
	left := s.Connections
	err = r.Receive(s.Connections, sample.Room, func(m *rdma.Message) {
		r.Fail(s.Show(m.Bytes(), fmt.Sprintf("received on connection %d: %%s", m.Connection().ID()))) // Fail(nil) does nothing
		if left--; left == 0 {
			// The peer's device may still repeat a message whose acknowledgement was lost, and
			// only an open connection acknowledges it again: stop when the peer has ended.
			s.Finish() // the context ends with it
		}
	})
	if err != nil {
		return err
	}

	r.OnStateChange(func(_, next pe.State) {
		s.LogState(next)
		if next == pe.Starting { // exchange descriptors; each end connects to the one of the same number
			s.ConnectAll(ctx, r, func(_ *oob.Answer, err error) { r.Fail(err) })
		}
	})
	r.Fail(r.Start())
	return engine.Run(ctx) // until the context is Idle
}
