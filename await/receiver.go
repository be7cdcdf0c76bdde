package await

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Receiver receives messages for one goroutine at a time that asks for them. It
// keeps a number of receives posted while its context is Running. A message takes
// one of them until it has been dealt with: when all are taken, peers wait, and
// nothing is lost.
type Receiver struct {
	ctx   *rdma.Context
	pool  *rdma.ReceivePool
	slots []Message
	bell  chan struct{} // holds one ring: look again

	mu       sync.Mutex
	arrived  []*Message // in order, not delivered
	free     []*Message // not posted, not arrived, not delivered
	busy     bool       // somebody receives
	closed   bool
	released bool  // the buffers were given back
	over     bool  // the context has stopped, and has not been started since
	err      error // why it did, or why receives cannot be posted
	posting  bool  // post is on its way to the engine's goroutine
}

// NewReceiver makes a receiver that keeps n receives posted, each with a buffer of
// bufs, which are to be as large as the largest message. It is made while the
// context is Idle, and belongs to it: messages can come as soon as the context is
// Running. Other receives of the same context would take messages away from it.
//
// It takes n buffers from bufs and keeps them until Close. It belongs to the
// goroutine that drives the engine, as making pools does: call it before that
// begins, or in Func. Its errors match ErrInvalid and those of
// rdma.Context.ReceivePool and bufinv.Pool.Alloc.
func NewReceiver(c *rdma.Context, bufs *bufinv.Pool, n int) (*Receiver, error) {
	if c == nil || bufs == nil || n < 1 {
		return nil, fmt.Errorf("await: make a receiver of %d receives: %w: it needs a context, a pool of buffers, and one receive at least", n, ErrInvalid)
	}
	r := &Receiver{ctx: c, bell: make(chan struct{}, 1)}
	err := r.takeBuffers(bufs, n)
	if err == nil {
		r.pool, err = c.ReceivePool(n, r.received, r.failed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("await: make a receiver of %d receives: %w", n, err), r.freeBuffers())
	}
	c.Watch(r.changed)
	return r, nil
}

func (r *Receiver) takeBuffers(bufs *bufinv.Pool, n int) error {
	if left := bufs.Available(); left < n { // before making room for any number
		return fmt.Errorf("the pool of buffers is %w: it has %d left", bufinv.ErrExhausted, left)
	}
	r.slots = make([]Message, n)
	for i := range r.slots {
		m := &r.slots[i]
		m.buf = bufs.Alloc()
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
// next one, and ends quietly, after the last message, when the context has been
// stopped; before it is started for the first time, and while it is starting, it
// waits too. An error of one receive comes in its place in the order, and the
// iteration goes on; the message then has no data. An error that ends the iteration
// comes with a nil message: the cause of ctx's end, the reason why the context has
// failed, ErrBusy while another iteration is under way, ErrClosed, pe.ErrReentrant.
//
// However an iteration ends, messages not delivered are kept for the next one.
func (r *Receiver) Messages(ctx context.Context) iter.Seq2[*Message, error] {
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
	defer r.giveBack(m)
	return yield(m, m.err)
}

func (r *Receiver) begin() error {
	if e := r.ctx.Engine(); e != nil {
		if err := e.MayBlock("wait for messages"); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return r.refuse(ErrClosed)
	case r.busy:
		return r.refuse(fmt.Errorf("%w: another iteration is under way; receive in one place at a time", ErrBusy))
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

// next waits for a message. It returns none when the iteration is to end.
func (r *Receiver) next(ctx context.Context) (*Message, error) {
	for {
		if ctx.Err() != nil {
			return nil, ended(ctx, "receive messages")
		}
		m, over, err := r.look()
		if m != nil || over {
			return m, err
		}
		select {
		case <-r.bell:
		case <-ctx.Done():
		}
	}
}

// look takes the first message that has arrived, or says that none will come.
func (r *Receiver) look() (m *Message, over bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.arrived) > 0 {
		m = r.arrived[0]
		n := copy(r.arrived, r.arrived[1:])
		r.arrived = r.arrived[:n]
		return m, false, nil
	}
	if r.over && r.ctx.State() != pe.Idle {
		return nil, false, nil // started again, which changed is yet to hear
	}
	return nil, r.over || r.err != nil, r.err
}

// giveBack has the receive of a message posted again.
func (r *Receiver) giveBack(m *Message) {
	r.mu.Lock()
	r.free = append(r.free, m)
	due := !r.posting && !r.over
	r.posting = r.posting || due
	r.mu.Unlock()
	if e := r.ctx.Engine(); due && e != nil {
		_ = e.Do(r.post) // an engine that is closed receives nothing
	}
}

// Close ends the receiver: it delivers no message any more, and gives its buffers
// back, those of messages not delivered included. It does so at once if the context is
// Idle; otherwise its receives stay posted, and the buffers come back when the context
// becomes Idle. Nobody may be receiving (ErrBusy). Closing again does nothing.
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
		return nil // changed does the rest
	}
	return r.release()
}

// release gives the buffers of a receiver that is closed back, once. The lock is held.
func (r *Receiver) release() error {
	if r.released {
		return nil
	}
	r.released = true
	r.arrived, r.free = nil, nil
	return r.freeBuffers()
}

func (r *Receiver) freeBuffers() error {
	var errs []error
	for i := range r.slots {
		errs = append(errs, r.slots[i].buf.Free())
	}
	return errors.Join(errs...)
}
