package await

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Receiver receives messages for one goroutine at a time. It keeps a number of receives posted
// while its context is Starting or Running. A message occupies one of them until the body of
// the loop that got it ends. When all are occupied, the devices of connected peers repeat
// their messages, and nothing is lost; UD messages are lost then, silently.
type Receiver struct {
	ctx    rdma.Context
	pool   *rdma.ReceivePool
	mem    *mmap.Map // of the buffers
	bufs   *bufinv.Pool
	slots  []Message
	wakeup chan struct{} // holds one value: the state below has changed

	mu         sync.Mutex
	arrived    []*Message // in order, not delivered
	free       []*Message // not posted, not arrived, not delivered
	last       *Message   // what Receive has returned
	busy       bool       // an iteration or a Receive is under way
	closed     bool
	released   bool  // the buffers were given back
	stopped    bool  // the context has stopped, and has not been started since
	err        error // why the context stopped, or why receives cannot be posted
	postQueued bool  // post is on its way to the engine's goroutine
}

// NewReceiver makes a receiver that keeps n receives posted, each with a buffer of size bytes,
// the length of the largest message. A longer message fails its connection. NewReceiver is
// legal while the context is Idle. Messages can arrive as soon as the context is Starting.
// Other receives of the same context would take messages away from the receiver.
//
// The buffers are in one piece of memory, outside the Go heap where the system allows, which
// the receiver holds until Close. NewReceiver belongs to the goroutine that drives the engine,
// as the making of pools does: call it before the engine is driven, or in Func. Its errors
// match ErrInvalid and those of rdma.Connections.ReceivePool and mmap.New.
func NewReceiver(c rdma.Context, n, size int) (*Receiver, error) {
	if c == nil || n < 1 || n > pe.MaxTasks || size < 1 || size > math.MaxInt/n-receiverAlign {
		return nil, fmt.Errorf("await: make a receiver of %d receives of %d bytes: %w: give a context, at least 1 receive, and at least 1 byte for each", n, size, ErrInvalid)
	}
	r := &Receiver{ctx: c, wakeup: make(chan struct{}, 1)}
	err := r.makeBuffers(n, size)
	if err == nil {
		r.pool, err = c.ReceivePool(n, r.received, r.failed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("await: make a receiver of %d receives of %d bytes: %w", n, size, err), r.freeBuffers())
	}
	c.Watch(r.stateChanged)
	return r, nil
}

// receiverAlign is the alignment of the buffers: no two share a cache line.
const receiverAlign = 64

func (r *Receiver) makeBuffers(n, size int) error {
	stride := (size + receiverAlign - 1) &^ (receiverAlign - 1)
	var err error
	if r.mem, err = mmap.New(r.ctx.Device(), mmap.Config{Size: n * stride, Permissions: mmap.LocalReadWrite, PD: r.ctx.PD()}); err != nil {
		return err
	}
	if r.bufs, err = bufinv.NewPool(r.mem, bufinv.PoolConfig{Count: n, Size: size, Align: receiverAlign}); err != nil {
		return err
	}
	r.slots = make([]Message, n)
	for i := range r.slots {
		m := &r.slots[i]
		m.buf = r.bufs.Alloc()
		if err := m.buf.Err(); err != nil {
			return err
		}
		r.free = append(r.free, m)
	}
	return nil
}

// Messages returns an iterator over the messages, in the order of their arrival:
//
//	for msg, err := range receiver.Messages(ctx) { ... }
//
// A message is valid until the body of the loop ends. The iterator waits for the
// next one, also before the context is started and while it is Starting. When the
// context has been stopped, it ends after the last message, without an error.
//
// A failed receive yields, in its place in the order, a message without data and the error,
// and the iteration goes on. An error that ends the iteration comes with a nil message: the
// cause of ctx's end, the reason why the context has failed, ErrBusy while another iteration
// is under way, ErrClosed, or pe.ErrReentrant on the engine's goroutine.
//
// However an iteration ends, messages not delivered are kept for the next one.
func (r *Receiver) Messages(ctx context.Context) iter.Seq2[*Message, error] {
	if ctx == nil {
		ctx = context.Background()
	}
	return func(yield func(*Message, error) bool) {
		if err := r.begin(); err != nil {
			yield(nil, err)
			return
		}
		defer r.finish()
		for {
			m, err := r.next(ctx)
			if m == nil {
				if err != nil {
					yield(nil, err)
				}
				return
			}
			if !r.deliver(m, yield) {
				return
			}
		}
	}
}

// deliver gives a message to the body of the loop, and takes it back.
func (r *Receiver) deliver(m *Message, yield func(*Message, error) bool) bool {
	defer r.repost(m)
	return yield(m, m.err)
}

// Receive returns the next message, for programs that do not receive in a loop. It is valid
// until the next call of Receive or Messages. Receive waits while the context is not started
// yet. It fails with ErrStopped once the context has stopped and no messages are left, with
// the reason if the context has failed, or with the error of a failed receive. Otherwise it is
// as an iteration of Messages.
func (r *Receiver) Receive(ctx context.Context) (*Message, error) {
	if err := r.begin(); err != nil {
		return nil, err
	}
	defer r.finish()
	m, err := r.next(ctx)
	switch {
	case m == nil && err == nil:
		return nil, r.refuse(ErrStopped)
	case m == nil:
		return nil, err
	case m.err != nil:
		err = m.err
		r.repost(m)
		return nil, err
	}
	r.mu.Lock()
	r.last = m
	r.mu.Unlock()
	return m, nil
}

func (r *Receiver) begin() error {
	if err := r.acquire(); err != nil {
		return err
	}
	r.mu.Lock()
	m := r.last
	r.last = nil
	r.mu.Unlock()
	if m != nil {
		r.repost(m)
	}
	return nil
}

func (r *Receiver) acquire() error {
	if e := r.ctx.Engine(); e != nil {
		if err := e.Friends(friend.Package{}).MayBlock("wait for messages"); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return r.refuse(ErrClosed)
	case r.busy:
		return r.refuse(fmt.Errorf("%w: another iteration or Receive is under way; receive in one place at a time", ErrBusy))
	}
	r.busy = true
	return nil
}

func (r *Receiver) refuse(err error) error {
	return fmt.Errorf("await: receive messages of context %q: %w", r.ctx.Name(), err)
}

func (r *Receiver) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
}

// next waits for a message. It returns nil when the iteration is to end.
func (r *Receiver) next(ctx context.Context) (*Message, error) {
	for {
		if ctx.Err() != nil {
			return nil, ended(ctx, "receive messages")
		}
		m, over, err := r.takeArrived()
		if m != nil || over {
			return m, err
		}
		_, _ = wait(ctx, r.ctx.Engine(), r.wakeup)
	}
}

// takeArrived returns the first message that has arrived, or reports that no more will come.
func (r *Receiver) takeArrived() (m *Message, over bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.arrived) > 0 {
		m = r.arrived[0]
		n := copy(r.arrived, r.arrived[1:])
		r.arrived = r.arrived[:n]
		return m, false, nil
	}
	if r.stopped && r.ctx.State() != pe.Idle {
		return nil, false, nil // started again, and not reported to stateChanged yet
	}
	return nil, r.stopped || r.err != nil, r.err
}

// repost posts the receive of a message again, on the engine's goroutine.
func (r *Receiver) repost(m *Message) {
	r.mu.Lock()
	r.free = append(r.free, m)
	due := !r.postQueued && !r.stopped
	r.postQueued = r.postQueued || due
	r.mu.Unlock()
	if e := r.ctx.Engine(); due && e != nil {
		_ = e.Dispatch(r.post) // an engine that is closed receives nothing
	}
}

// Close ends the receiver: it delivers no more messages, and releases all of its buffers.
// These include the buffers of messages not delivered, and of the message that Receive has
// returned. If the context is not Idle, the receives stay posted, and the buffers are released
// when it becomes Idle. Close fails with ErrBusy while an iteration is under way. Closing
// again does nothing.
func (r *Receiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.busy {
		return fmt.Errorf("await: close the receiver of context %q: %w: an iteration over its messages is under way; end that first", r.ctx.Name(), ErrBusy)
	}
	r.closed = true
	if r.ctx.State() != pe.Idle {
		return nil // stateChanged does the rest
	}
	return r.release()
}

// release gives back the buffers of a receiver that is closed, once. The lock is held.
func (r *Receiver) release() error {
	if r.released {
		return nil
	}
	r.released = true
	r.arrived, r.free, r.last = nil, nil, nil
	return r.freeBuffers()
}

func (r *Receiver) freeBuffers() error {
	var errs []error
	for i := range r.slots {
		errs = append(errs, r.slots[i].buf.Free())
	}
	if r.bufs != nil {
		errs = append(errs, r.bufs.Close())
	}
	if r.mem != nil {
		errs = append(errs, r.mem.Close())
	}
	return errors.Join(errs...)
}
