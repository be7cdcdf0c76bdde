// Package link sends messages and RDMA writes over connections of package rdma, for goroutines
// that wait rather than for callbacks.
//
// A Hub serves all connections of one context: it makes the pools, and passes each message and
// each change of state to the Link of the connection. Received messages are copied and queued
// for Link.Receive. The queue is bounded: a peer that overflows it loses its connection.
package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
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
	// maxSends is how many messages of one link may be posted at the device.
	maxSends = 16
	// maxQueued and queueBytes bound the messages and bytes that wait for Receive. A peer that
	// follows the protocol has less in flight: a block for each slot, proto.Unplanned
	// announcements, and a few bytes for each of proto.Outstanding entries.
	maxQueued, maxQueuedBytes = proto.Outstanding + 2*proto.MaxSlots, 2 << 20
)

// Hub serves the connections of one context.
type Hub struct {
	dev     verbs.Device
	rdma    *rdma.Connections
	engine  *pe.Engine
	sends   *rdma.Pool
	writes  *rdma.Pool // nil: the links do not write
	onState func(*rdma.Connection, rdma.ConnectionState, error)
}

// NewHub prepares a context, which must be Idle, for at most links links at a time. With
// writer, the links can write. onState, which may be nil, is called at each change of state of
// a connection, on the engine's goroutine, before the link handles the change.
func NewHub(dev verbs.Device, r *rdma.Connections, links int, writer bool, onState func(*rdma.Connection, rdma.ConnectionState, error)) (*Hub, error) {
	h := &Hub{dev: dev, rdma: r, engine: r.Engine(), onState: onState}
	var err error
	if h.sends, err = r.Pool(links*maxSends, pe.Done, pe.Failed); err != nil {
		return nil, err
	}
	if writer {
		// A block that is paced is written in pieces, one at a time.
		if h.writes, err = r.Pool(links*proto.MaxSlots, pe.Done, pe.Failed); err != nil {
			return nil, err
		}
	}
	r.OnConnection(h.connectionChanged)
	if err := r.Receive(max(links*8, 64), proto.MaxMessage, received); err != nil {
		return nil, err
	}
	return h, nil
}

func received(m *rdma.Message) {
	if l, ok := m.Connection().UserData().(*Link); ok {
		l.deliver(m.Bytes())
	}
}

func (h *Hub) connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	if h.onState != nil {
		h.onState(conn, state, err)
	}
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
	memory       *mmap.Map // send buffers
	freeBuffers  chan int  // free send buffers
	received     chan []byte
	queued       atomic.Int64 // bytes of the messages that wait in in
	ready        chan struct{}
	done         chan struct{} // the connection has ended, or must end
	released     chan struct{} // the device has released the connection
	lastReceived atomic.Int64  // when the last message arrived, in Unix nanoseconds
	once         sync.Once
	err          error // once done is closed: ErrBroken, and why
	cause        error // likewise, without ErrBroken
}

// Open makes the link of a connection. It must be called on the engine's goroutine, in the
// call that made the connection: no message can have arrived before then.
func (h *Hub) Open(conn *rdma.Connection) (*Link, error) {
	l := &Link{hub: h, conn: conn, freeBuffers: make(chan int, maxSends), received: make(chan []byte, maxQueued),
		ready: make(chan struct{}), done: make(chan struct{}), released: make(chan struct{})}
	var err error
	if l.memory, err = mmap.Alloc(h.dev, maxSends*proto.MaxMessage, mmap.LocalReadOnly); err != nil {
		return nil, err
	}
	for i := range maxSends {
		l.freeBuffers <- i
	}
	l.lastReceived.Store(time.Now().UnixNano())
	conn.SetUserData(l)
	if conn.State() == rdma.Ready {
		close(l.ready)
	}
	return l, nil
}

// Device is the device of the link.
func (l *Link) Device() verbs.Device { return l.hub.dev }

// Connection is the connection of the link. Its methods belong to the engine's goroutine,
// except those that return addresses and queue pair numbers, which do not change once it is
// Ready.
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

func (l *Link) deliver(b []byte) {
	l.lastReceived.Store(time.Now().UnixNano())
	if proto.IsPing(b) {
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

// end records why the link has ended. A nil error means that the peer closed it.
func (l *Link) end(err error) {
	l.once.Do(func() {
		l.err, l.cause = ErrBroken, err
		if err != nil {
			l.err = fmt.Errorf("%w: %w", ErrBroken, err)
		}
		close(l.done)
	})
}

// Receive returns the next message. After the connection has ended, it returns the messages
// that are still queued, then ErrBroken.
func (l *Link) Receive(ctx context.Context) ([]byte, error) {
	select {
	case b := <-l.received:
		return l.dequeue(b), nil
	default:
	}
	select {
	case b := <-l.received:
		return l.dequeue(b), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.done:
		select {
		case b := <-l.received:
			return l.dequeue(b), nil
		default:
			return nil, l.err
		}
	}
}

func (l *Link) dequeue(b []byte) []byte {
	l.queued.Add(-int64(len(b)))
	return b
}

// Write is a write to the memory of the peer.
type Write struct {
	Source *mmap.Map
	From   int // offset in Source
	Target *mmap.Map
	To     int // offset in Target
	Length int
	// Done is called when the device no longer needs the source, on the engine's goroutine, or
	// when the write has failed or was never posted.
	Done func()
}

// Send posts a message behind everything that was posted before. It does not wait until the
// peer has the message. Its errors are ErrBroken and the cause of ctx.
func (l *Link) Send(ctx context.Context, m proto.Message) error { return l.WriteSend(ctx, Write{}, m) }

// WriteSend posts a write, unless its length is zero, and behind it a message, unless that is
// nil. The written data is in place when the peer receives the message.
func (l *Link) WriteSend(ctx context.Context, w Write, m proto.Message) error {
	select {
	case <-l.done: // even if a send buffer is free
		w.finish()
		return l.err
	default:
	}
	buffer, b := -1, []byte(nil)
	if m != nil {
		var err error
		if b, err = proto.Encode(m); err != nil {
			w.finish()
			return err
		}
		select {
		case buffer = <-l.freeBuffers:
		case <-l.done:
			w.finish()
			return l.err
		case <-ctx.Done():
			w.finish()
			return context.Cause(ctx)
		}
	}
	err := l.hub.engine.Do(func() { l.post(w, buffer, b) })
	if err != nil {
		w.finish()
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}

func (w *Write) finish() {
	if w.Done != nil {
		w.Done()
	}
}

// post runs on the engine's goroutine, so that Close cannot free the memory while it runs.
func (l *Link) post(w Write, buffer int, message []byte) {
	var err error
	select {
	case <-l.done:
		err = l.err
	default:
	}
	if err == nil && w.Length > 0 {
		err = l.postWrite(w, buffer >= 0)
	} else {
		w.finish()
	}
	if buffer < 0 {
		l.endOnError(err)
		return
	}
	if err == nil {
		var task *rdma.Task
		n := copy(l.memory.Bytes()[buffer*proto.MaxMessage:], message)
		task, err = l.hub.sends.Send(l.conn, bufinv.Source(l.memory, buffer*proto.MaxMessage, n))
		err = pe.SubmitOrFree(task, err, func(t *rdma.Task, _ error) {
			_ = t.Free()
			l.freeBuffers <- buffer
		})
	}
	if err != nil {
		l.freeBuffers <- buffer
	}
	l.endOnError(err)
}

func (l *Link) postWrite(w Write, more bool) error {
	task, err := l.hub.writes.Write(l.conn, bufinv.Source(w.Source, w.From, w.Length), bufinv.Target(w.Target, w.To, w.Length))
	if err == nil {
		pe.Then(task, func(t *rdma.Task, _ error) {
			_ = t.Free()
			w.finish()
		})
		var flags pe.SubmitFlags
		if more {
			flags = pe.Aggregate // submit the message together with the write
		}
		if err = task.Submit(flags); err != nil {
			_ = task.Free()
		}
	}
	if err != nil {
		w.finish()
	}
	return err
}

// endOnError ends the link if a task could not be submitted.
func (l *Link) endOnError(err error) {
	if err != nil {
		l.end(err)
		_ = l.conn.Close()
	}
}

// Close ends the connection, and waits until the device has released it, or until ctx ends.
// Messages that were posted go out first, for at most rdma.Config.CloseTimeout.
func (l *Link) Close(ctx context.Context) error {
	if err := await.Func(ctx, l.hub.engine, func() error {
		l.end(nil)
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
func (l *Link) WaitClosed(ctx context.Context) {
	select {
	case <-l.done:
	case <-ctx.Done():
	}
}
