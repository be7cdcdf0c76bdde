package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// end is one end of an operation: the part common to all operations. The operation runs on one
// goroutine, and another one drives the engine.
type end struct {
	settings
	peer    *oob.Peer
	out     io.Writer
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Connections
	conns   []*rdma.Connection
	bufs    bufinv.Inventory
	theirs  *oob.Answer
	ended   chan struct{} // of a responder: closed when the requester has ended
	waiting string        // for what the end waits
	driver  sync.WaitGroup
	stop    context.CancelFunc // of the driver; nil: the engine is not driven yet

	// What the operation makes, and the end closes: memory of its own, memory and an event that it
	// exports, and a context for events.
	local, memory *mmap.Map
	event         *syncevent.Event
	events        *syncevent.Context
}

// newPeer returns the peer for the exchange: the other end of the same operation.
func newPeer(s settings) (*oob.Peer, error) {
	c := oob.Config{
		Name: s.operation.name + "_responder", Peer: s.operation.name + "_requester",
		Role: oob.Responder, Expect: &oob.Expect{}, Log: s.log,
	}
	if s.requester {
		c.Name, c.Peer, c.Role = c.Peer, c.Name, oob.Requester
	}
	if s.requester || s.operation.mutual {
		switch s.operation.shares {
		case memory:
			c.Expect.Maps = 1
		case event:
			c.Expect.Events = 1
		}
	}
	return oob.Open(s.oob, c)
}

func (e *end) run(ctx context.Context) (err error) {
	if e.dev, err = device.Open(e.device); err != nil {
		return err
	}
	defer closing(&err, e.dev.Close)
	e.engine = pe.New(pe.Config{Log: e.log})
	defer closing(&err, e.engine.Close)
	defer closing(&err, e.close)
	if e.rdma, err = rdma.New(e.dev, e.config()); err != nil {
		return err
	}
	defer closing(&err, e.rdma.Close)
	defer closing(&err, e.bufs.Close)
	operate := e.operation.responder
	if e.requester {
		operate = e.operation.requester
	}
	if err = operate(ctx, e); err != nil {
		e.rdma.Fail(err)
	}
	if e.stop != nil {
		e.stop() // which stops the contexts that are not Idle
		e.driver.Wait()
	}
	return cmp.Or(e.rdma.Err(), err) // the first error is the reason of the others
}

func (e *end) config() rdma.Config {
	c := rdma.Config{
		Engine: e.engine,
		Path:   rdma.PathConfig{GIDIndex: e.gid, MTU: e.mtu},

		MaxConnections:        e.connections,
		EndWithLastConnection: e.requester,
		ConnectTimeout:        e.connectTimeout,
		AckTimeout:            e.ackTimeout,
		MaxSGE:                e.sge,
	}
	if !e.requester || e.operation.mutual {
		c.Permissions = e.operation.permits
	}
	return c
}

// errStopped: there is no error, and the work is not done.
var errStopped = errors.New("the other end has left before the work was done")

// connect makes all connections, and exchanges descriptors with the peer. It returns once both
// ends have connected. The user data of a connection is its index. working ends when the context
// leaves Running. From now on another goroutine drives the engine.
func (e *end) connect(ctx context.Context) (working context.Context, err error) {
	offer := oob.Offer{Connections: e.connections}
	if e.memory != nil {
		offer.Maps = []*mmap.Map{e.memory}
	}
	if e.event != nil {
		offer.Events = []*syncevent.Event{e.event}
	}
	working, stopped := context.WithCancelCause(ctx)
	e.waiting = "the descriptors of the other end"
	if !e.requester {
		e.peer.EndWith(e.rdma)
	}
	e.rdma.OnStateChange(func(_, next pe.State) {
		e.log.Info().Msgf("the context is %v", next)
		switch next {
		case pe.Starting:
			e.peer.Exchange(ctx, e.rdma, offer, func(theirs *oob.Answer, err error) {
				if err != nil {
					e.rdma.Fail(err)
					return
				}
				e.waiting = "the connection to the other end"
				e.theirs, e.conns = theirs, theirs.Connections
				for i, conn := range e.conns {
					conn.SetUserData(i)
				}
			})
		case pe.Stopping:
			stopped(cmp.Or(e.rdma.Err(), errStopped))
		}
	})
	driven, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.driver.Go(func() { _ = await.Run(driven, e.engine) }) // Err has the error of the context
	if err := await.Start(ctx, e.rdma); err != nil {
		stopped(err)
		return working, err
	}
	e.waiting = "the tasks to complete"
	if !e.requester {
		// The requester may fail at any time.
		e.ended = make(chan struct{})
		err = await.Func(ctx, e.engine, func() error {
			e.peer.Done(func(err error) {
				e.rdma.Fail(err)
				close(e.ended)
			})
			return nil
		})
	}
	return working, err
}

// finish stops the context. A responder waits until the requester has ended: until then its device
// may repeat packets that were not acknowledged.
func (e *end) finish(ctx context.Context) error {
	if !e.requester {
		e.waiting = "the requester to end"
		select {
		case <-e.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return cmp.Or(await.Stop(ctx, e.rdma), e.rdma.Err())
}

// close releases what the operation has made, once the context is Idle.
func (e *end) close() (err error) {
	if e.events != nil {
		err = e.events.Close()
	}
	if e.event != nil {
		err = errors.Join(err, e.event.Close())
	}
	for _, m := range []*mmap.Map{e.local, e.memory} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// print writes a line about data that was moved.
func (e *end) print(format string, args ...any) { _, _ = fmt.Fprintf(e.out, format+"\n", args...) }

func closing(err *error, f func() error) { *err = errors.Join(*err, f()) }
