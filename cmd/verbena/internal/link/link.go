// Package link sends messages and RDMA writes over connections of package rdma, for goroutines
// that wait rather than for callbacks.
//
// A Hub serves all connections of one context: it makes the pools, and passes each message and
// each change of state to the Link of the connection. Received messages are copied and queued
// for Link.Receive. The queue is bounded: a peer that overflows it loses its connection. (An
// await.Receiver has the receives of a whole context: one peer could keep them from the others.)
package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	// ErrBroken: the connection has ended. The text says how.
	ErrBroken = errors.New("the connection has ended")
	// ErrFlood: the peer sends more than the protocol allows.
	ErrFlood = errors.New("the peer sends more messages than the protocol allows")
)

const (
	// maxSends and maxWrites are how many messages and writes of one link may be at the device.
	// (A block with a limit of its rate is written in pieces.)
	maxSends, maxWrites = 16, proto.MaxSlots
	// maxQueued and maxQueuedBytes bound the messages and bytes that wait for Receive. A peer
	// that follows the protocol has less in flight: a block for each slot, proto.Unplanned
	// announcements, and a few bytes for each of proto.Outstanding entries.
	maxQueued, maxQueuedBytes = proto.Outstanding + 2*proto.MaxSlots, 2 << 20
)

// Hub serves the connections of one context.
type Hub struct {
	rdma          *rdma.Connections
	sends, writes *rdma.Pool // never exhausted: each link has a limit. No writes: the links do not write
}

// NewHub prepares a context, which must be Idle, for at most links links at a time. With
// writer, the links can write.
func NewHub(r *rdma.Connections, links int, writer bool) (*Hub, error) {
	h := &Hub{rdma: r}
	var err error
	if h.sends, err = r.Pool(links*maxSends, pe.TaskDone, pe.TaskFailed); err != nil {
		return nil, err
	}
	if writer {
		if h.writes, err = r.Pool(links*maxWrites, pe.TaskDone, pe.TaskFailed); err != nil {
			return nil, err
		}
	}
	r.OnConnection(connectionChanged)
	return h, r.Receive(max(links*8, 64), proto.MaxMessage, received)
}

func received(m *rdma.Message) {
	if l, ok := m.Connection().UserData().(*Link); ok {
		l.deliver(m.Bytes())
	}
}

func connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	l, ok := conn.UserData().(*Link)
	switch state {
	case rdma.Ready:
		if ok {
			close(l.ready)
		}
	case rdma.Failed:
		if ok {
			l.end(err)
		}
		_ = conn.Close() // frees the connection's place in the context
	case rdma.Closed:
		if ok {
			l.end(err)
			close(l.released)
		}
	}
}

// Link is a connection that carries messages. Its methods may be called from any goroutine
// except the engine's.
type Link struct {
	hub          *Hub
	conn         *rdma.Connection
	ready        chan struct{}
	done         chan struct{} // the connection has ended, or must end
	released     chan struct{} // the device has released the connection
	err          error         // once done is closed: ErrBroken, and why
	cause        error         // likewise, without ErrBroken
	lastReceived atomic.Int64  // when the last message arrived, in Unix nanoseconds

	received chan []byte  // closed with done
	queued   atomic.Int64 // bytes of the messages in received

	posting chan struct{} // held by the goroutine that uses the fields below
	memory  *mmap.Map     // maxSends send buffers
	sends   inFlight
	writes  inFlight
}

// Open makes the link of a connection. It must be called on the engine's goroutine, in the
// call that made the connection: no message can have arrived before then.
func (h *Hub) Open(conn *rdma.Connection) (*Link, error) {
	l := &Link{hub: h, conn: conn, ready: make(chan struct{}), done: make(chan struct{}), released: make(chan struct{}),
		received: make(chan []byte, maxQueued), posting: make(chan struct{}, 1),
		sends: inFlight{tasks: make([]*await.Pending, maxSends)}, writes: inFlight{tasks: make([]*await.Pending, maxWrites)}}
	var err error
	if l.memory, err = mmap.Alloc(l.Device(), maxSends*proto.MaxMessage, mmap.LocalReadOnly); err != nil {
		return nil, err
	}
	l.lastReceived.Store(time.Now().UnixNano())
	conn.SetUserData(l)
	if conn.State() == rdma.Ready {
		close(l.ready)
	}
	return l, nil
}

// Device is the device of the link.
func (l *Link) Device() verbs.Device { return l.hub.rdma.Device() }

// Connection is the connection of the link. Its methods belong to the engine's goroutine,
// except LocalAddr, PeerAddr, QPN and PeerQPN, whose results do not change once it is Ready.
func (l *Link) Connection() *rdma.Connection { return l.conn }

// Ready waits until the connection is Ready. Its errors are those of package rdma.
func (l *Link) Ready(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-l.done:
		return cmp.Or(l.cause, ErrBroken)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// LastReceived is when the last message arrived, or when the link was made if none has.
func (l *Link) LastReceived() time.Time { return time.Unix(0, l.lastReceived.Load()) }

// deliver queues a message. It runs on the engine's goroutine.
func (l *Link) deliver(b []byte) {
	l.lastReceived.Store(time.Now().UnixNano())
	if proto.IsPing(b) || l.err != nil {
		return
	}
	if l.queued.Add(int64(len(b))) <= maxQueuedBytes {
		select {
		case l.received <- append([]byte(nil), b...):
			return
		default:
		}
	}
	l.end(ErrFlood)
	_ = l.conn.Close()
}

// end records why the link has ended. A nil error means that the peer closed it. It runs on the
// engine's goroutine.
func (l *Link) end(err error) {
	if l.err != nil {
		return
	}
	l.err, l.cause = broken(err), err
	close(l.done)
	close(l.received)
}

func broken(err error) error {
	if err == nil {
		return ErrBroken
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// Receive returns the next message. After the connection has ended, it returns the messages
// that are still queued, then ErrBroken.
func (l *Link) Receive(ctx context.Context) ([]byte, error) {
	select {
	case b, ok := <-l.received:
		if !ok {
			return nil, l.err
		}
		l.queued.Add(-int64(len(b)))
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Write is a write to the memory of the peer.
type Write struct {
	Source *mmap.Map
	From   int // offset in Source
	Target *mmap.Map
	To     int // offset in Target
	Length int
}

// Send posts a message behind everything that was posted before. It does not wait until the
// peer has the message. Its errors are ErrBroken and the cause of ctx.
func (l *Link) Send(ctx context.Context, m proto.Message) error {
	_, err := l.WriteSend(ctx, Write{}, m)
	return err
}

// WriteSend posts a write, unless its length is zero, and behind it a message, unless that is
// nil. The written data is in place when the peer receives the message. When the Pending is done, the
// device no longer needs the sources of this write and of earlier ones.
func (l *Link) WriteSend(ctx context.Context, w Write, m proto.Message) (last *await.Pending, err error) {
	var b []byte
	if m != nil {
		if b, err = proto.Encode(m); err != nil {
			return nil, err
		}
	}
	select {
	case l.posting <- struct{}{}:
		defer func() { <-l.posting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if w.Length > 0 {
		last, err = l.post(ctx, &l.writes, func(int) (*rdma.Task, error) {
			return l.hub.writes.Write(l.conn, bufinv.Source(w.Source, w.From, w.Length), bufinv.Target(w.Target, w.To, w.Length))
		})
	}
	if m != nil && err == nil {
		last, err = l.post(ctx, &l.sends, func(place int) (*rdma.Task, error) {
			at := place * proto.MaxMessage
			return l.hub.sends.Send(l.conn, bufinv.Source(l.memory, at, copy(l.memory.Bytes()[at:], b)))
		})
	}
	return last, err
}

// inFlight holds the tasks of one kind that a link has posted, in order.
type inFlight struct {
	tasks []*await.Pending // by place; nil: not used yet
	next  int              // the place of the next task, which has the oldest one
}

// post posts a task when its place is free. alloc runs on the engine's goroutine.
func (l *Link) post(ctx context.Context, f *inFlight, alloc func(place int) (*rdma.Task, error)) (*await.Pending, error) {
	place := f.next
	if err := l.Wait(ctx, f.tasks[place]); err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return nil, l.err
	default:
	}
	p, err := await.Post(l.hub.rdma.Engine(), func() (*rdma.Task, error) {
		if l.err != nil { // Close may have freed the memory
			return nil, l.err
		}
		t, err := alloc(place)
		if err != nil {
			l.end(err)
			_ = l.conn.Close()
		}
		return t, err
	})
	if err != nil {
		return nil, broken(err)
	}
	f.tasks[place], f.next = p, (place+1)%len(f.tasks)
	return p, nil
}

// Wait waits until what WriteSend has posted has completed. Its errors are ErrBroken and the cause of
// ctx. A nil Pending has completed.
func (l *Link) Wait(ctx context.Context, p *await.Pending) error {
	if p != nil && p.Wait(ctx) != nil {
		return l.ended(ctx) // if the task has failed, so has the connection, which knows why
	}
	return nil
}

// Close ends the connection, and waits until the device has released it, or until ctx ends.
// Messages that were posted go out first, for at most rdma.Config.CloseTimeout.
func (l *Link) Close(ctx context.Context) error {
	if err := await.Func(ctx, l.hub.rdma.Engine(), func() error {
		l.end(nil)
		l.hub.rdma.Flush() // what await.Post has submitted may wait for the end of this pass
		return l.conn.Close()
	}); err != nil {
		return err
	}
	select {
	case <-l.released:
		return l.memory.Close()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WaitClosed waits until the peer has closed the connection, or it has failed.
func (l *Link) WaitClosed(ctx context.Context) { _ = l.ended(ctx) }

// ended waits until the link or ctx has ended, and returns why.
func (l *Link) ended(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
