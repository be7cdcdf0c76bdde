package await

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Dial makes a connection by address, as rdma.Connections.Dial does, and waits until it is
// Ready. If the connection fails, Dial closes it, which frees its place among
// rdma.Config.MaxConnections, and returns the reason. If ctx ends first, Dial closes the
// connection too, and the error matches the cause of ctx and the reason why the latest attempt
// failed. ctx or DialConfig.Timeout limits how long Dial tries. The function of OnConnection
// gets every change, as always. Dial may be called from any goroutine but the engine's
// (pe.ErrReentrant), while the context is Starting or Running.
func Dial(ctx context.Context, r *rdma.Connections, addr string, cfg rdma.DialConfig) (*rdma.Connection, error) {
	op := "dial " + addr
	if r == nil {
		return nil, fmt.Errorf("await: %s: %w: no context is given", op, ErrInvalid)
	}
	e := r.Engine()
	if e == nil {
		return nil, fmt.Errorf("await: %s: %w; connect it with Engine.Connect", op, pe.ErrNotConnected)
	}
	d := &dialing{done: make(chan error, 1)}
	if err := Func(ctx, e, func() (err error) { return d.begin(r, addr, cfg) }); err != nil {
		return nil, err
	}
	err, ok := wait(ctx, e, d.done)
	if !ok {
		_ = e.Do(d.giveUp) // a closed engine has no connections
		if err := d.conn.DialError(); err != nil {
			return nil, fmt.Errorf("%w; the last attempt: %w", ended(ctx, op), err)
		}
		return nil, ended(ctx, op)
	}
	if err != nil {
		return nil, fmt.Errorf("await: %s: %w", op, err)
	}
	return d.conn, nil
}

// dialing waits for a connection, on the engine's goroutine.
type dialing struct {
	conn *rdma.Connection
	stop func()     // ends the watch; nil: it has ended
	done chan error // holds one
}

func (d *dialing) begin(r *rdma.Connections, addr string, cfg rdma.DialConfig) (err error) {
	if d.conn, err = r.Dial(addr, cfg); err != nil {
		return err
	}
	d.stop = r.WatchConnections(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if conn != d.conn {
			return
		}
		switch state {
		case rdma.Ready:
			d.finish(nil)
		case rdma.Failed:
			d.finish(err)
			_ = conn.Close()
		case rdma.Closed: // by the program, or with its context
			if err == nil {
				err = errors.Join(rdma.ErrFlushed, r.Err())
			}
			d.finish(err)
		}
	})
	return nil
}

func (d *dialing) finish(err error) {
	if d.stop != nil {
		d.stop()
		d.stop = nil
		d.done <- err
	}
}

// giveUp closes the connection, even if it has become Ready meanwhile, since the caller does
// not get it.
func (d *dialing) giveUp() {
	if d.stop != nil {
		d.stop()
		d.stop = nil
	}
	_ = d.conn.Close()
}
