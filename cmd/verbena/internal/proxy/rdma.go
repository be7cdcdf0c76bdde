package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/rsocket"
)

// rdma is the network of rsockets.
type rdma struct {
	stacks *rsocket.Stacks
	device string // empty: by the system's routes
}

// queued limits the connections of one address that wait while -max are open. Connections not yet
// confirmed by the peer count too. All addresses together have twice as many places.
const queued = 512

func newRDMA(device string, max int, log zerolog.Logger) *rdma {
	pairs := max + lingeringPlaces(max)
	cfg := rsocket.Config{MaxConnections: 2*pairs + 2*queued, Backlog: queued, Log: log} // both ends may be on one device
	return &rdma{rsocket.NewStacks(device, cfg), device}
}

// close waits until what was written has been sent, for some seconds at most.
func (r *rdma) close() error { return r.stacks.Close() }

func (r *rdma) listen(_ context.Context, a address) (net.Listener, error) {
	l, err := r.stacks.Listen(a.with(bindHost(a)).hostPort())
	switch {
	case err == nil:
		return l, nil
	case a.host == "" && r.device != "":
		return nil, fmt.Errorf("listen on %v of %s: %w; if the device has no loopback address, write %v to listen on all of its addresses", a, r.device, explain(err), a.with("*"))
	}
	return nil, fmt.Errorf("listen on %v: %w", a, explain(err))
}

func (r *rdma) dial(ctx context.Context, a address) (stream, error) {
	c, err := r.stacks.Dial(ctx, a.hostPort())
	if err != nil {
		return nil, explain(err)
	}
	return c, nil
}

// explain says which flag to change, if it is one.
func explain(err error) error {
	if errors.Is(err, rsocket.ErrRange) {
		return fmt.Errorf("%w; lower -max", err)
	}
	return err
}
