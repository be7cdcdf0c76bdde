package sample

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
)

// ConnectAll makes the connections of a program that has several. Call it in the callback that
// reports Starting. All connections are with the one peer, or, on the server of -cm, with one
// client each. The context is Running when all are Ready.
func (s *Session) ConnectAll(ctx context.Context, r *rdma.Connections, f func(a *oob.Answer, err error)) {
	if s.clients == nil {
		s.Peer.Exchange(ctx, r, oob.Offer{Connections: s.Connections}, f)
		return
	}
	all := &oob.Answer{}
	err := s.clients.Serve(r, oob.Offer{}, func(_ string, a *oob.Answer) error {
		if len(all.Connections) == s.Connections {
			return fmt.Errorf("all %d clients are connected already", s.Connections)
		}
		all.Connections = append(all.Connections, a.Connections...)
		if len(all.Connections) == s.Connections {
			f(all, nil)
		}
		return nil
	})
	if err != nil {
		f(nil, err)
	}
}

// EndWithPeer ends a program that receives when its peers end. Call it before Start. It is an
// error if the peers end before Finish has been called, since not everything has arrived.
func (s *Session) EndWithPeer(r *rdma.Connections) {
	if s.reports {
		s.Peer.EndWith(r)
		return
	}
	closed := 0
	r.WatchConnections(func(_ *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Failed:
			r.Fail(err)
		case errors.Is(err, rdma.ErrPeerClosed):
			closed++
			switch {
			case closed < s.Connections:
			case s.finished:
				_ = r.Stop() // on the engine's goroutine it does not fail
			default:
				r.Fail(fmt.Errorf("the peer ended before everything was received: %w", err))
			}
		}
	})
}

// Finish is called when everything has been received. The context ends with the peers.
func (s *Session) Finish() {
	s.finished = true
	if s.reports {
		s.Peer.Done(nil)
	}
}
