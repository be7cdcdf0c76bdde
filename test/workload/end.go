package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// role is the work of one end of an operation. begin is called on the engine's goroutine.
type role interface {
	// open makes memory and pools. The context is Idle.
	open() error
	// begin submits the first tasks, once both ends are connected. Its error ends the context,
	// and the tasks already submitted fail.
	begin(theirs *oob.Answer) error
}

// end is one end of an operation: the part common to all operations.
type end struct {
	settings
	peer    *oob.Peer
	out     io.Writer
	dev     verbs.Device
	engine  *pe.Engine
	rdma    *rdma.Connections
	conns   []*rdma.Connection // the user data of each is its index
	bufs    bufinv.Inventory
	role    role
	theirs  *oob.Answer
	waiting string // for what the end waits

	// What the role makes, and the end closes: memory of its own, memory and an event that it
	// exports, and a context for events.
	local, memory *mmap.Map
	event         *syncevent.Event
	events        *syncevent.Context
	cancel        context.CancelFunc // of a goroutine; nil: there is none
	goroutines    sync.WaitGroup
	stopping      func() // called when the context leaves Running; may be nil
}

func (e *end) run(ctx context.Context) (err error) {
	if e.dev, err = device.Open(e.device); err != nil {
		return err
	}
	defer closing(&err, e.dev.Close)
	e.engine = pe.New(pe.Config{Log: e.log})
	defer closing(&err, e.engine.Close)
	e.role = e.operation.responder(e)
	if e.requester {
		e.role = e.operation.requester(e)
	}
	defer closing(&err, e.close)
	e.rdma, err = rdma.New(e.dev, e.config())
	if err != nil {
		return err
	}
	defer closing(&err, e.rdma.Close)
	defer closing(&err, e.bufs.Close)
	if err := e.role.open(); err != nil {
		return err
	}
	if !e.requester {
		e.peer.EndWith(e.rdma)
	}
	e.rdma.OnStateChange(func(_, next pe.State) { e.entered(ctx, next) })
	if err := e.rdma.Start(); err != nil {
		return err
	}
	return e.engine.Run(ctx)
}

func (e *end) config() rdma.Config {
	c := rdma.Config{
		Engine: e.engine,
		Path:   rdma.Path{GIDIndex: e.gid, MTU: e.mtu},

		MaxConnections:        e.connections,
		EndWithLastConnection: e.requester,
		ConnectTimeout:        e.connectTimeout,
		Retries:               rdma.Retries{AckTimeout: e.ackTimeout},
		Queues:                rdma.Queues{MaxSendSGE: e.sge, MaxRecvSGE: e.sge},

		Log: e.log,
	}
	if !e.requester || e.operation.mutual {
		c.Permissions = e.operation.permits
	}
	return c
}

func (e *end) entered(ctx context.Context, next pe.State) {
	e.log.Info().Msgf("the context is %v", next)
	switch next {
	case pe.Starting:
		e.connect(ctx)
	case pe.Running:
		e.waiting = "the tasks to complete"
		e.rdma.Fail(e.role.begin(e.theirs))
	case pe.Stopping:
		if e.stopping != nil {
			e.stopping()
		}
	}
}

// connect makes all connections, and exchanges descriptors with the peer. The context is
// Running once both ends have connected.
func (e *end) connect(ctx context.Context) {
	offer := oob.Offer{Connections: e.connections}
	if e.memory != nil {
		offer.Maps = []*mmap.Map{e.memory}
	}
	if e.event != nil {
		offer.Events = []*syncevent.Event{e.event}
	}
	e.waiting = "the descriptors of the other end"
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
}

// failed is called with each task of a role that fails.
func (e *end) failed(t *rdma.Task, err error) { e.rdma.Fail(errors.Join(err, t.Free())) }

// aside runs f on a goroutine, which ends with the end.
func (e *end) aside(f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.goroutines.Go(func() { f(ctx) })
}

// close releases what the role has made, once the context is Idle.
func (e *end) close() (err error) {
	if e.cancel != nil {
		e.cancel()
		e.goroutines.Wait()
	}
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

// index returns the index of a connection.
func index(conn *rdma.Connection) int { return conn.UserData().(int) }

// print writes a line about data that was moved.
func (e *end) print(format string, args ...any) { _, _ = fmt.Fprintf(e.out, format+"\n", args...) }

// endWithPeer stops the context of a responder when the requester has ended: until then its
// device may repeat unacknowledged packets. Then check runs, unless the requester has failed.
func (e *end) endWithPeer(check func() error) {
	e.waiting = "the requester to end"
	e.peer.Done(func(err error) {
		if err == nil {
			err = check()
		}
		e.rdma.Fail(err)
		e.rdma.Stop()
	})
}

func closing(err *error, f func() error) { *err = errors.Join(*err, f()) }
