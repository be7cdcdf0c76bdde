package await

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// The functions of this file run on the engine's goroutine.

// stateChanged is called for each change of the context's state.
func (r *Receiver) stateChanged(_, next pe.State) {
	switch next {
	case pe.Starting, pe.Running:
		r.mu.Lock()
		r.stopped, r.err = false, nil
		r.mu.Unlock()
		r.post()
	case pe.Idle:
		r.mu.Lock()
		r.stopped = r.ctx.State() == pe.Idle // else it has been started again
		if err := r.ctx.Err(); err != nil {
			r.err = fmt.Errorf("await: receive messages: context %q has failed: %w", r.ctx.Name(), err)
		}
		if r.closed {
			_ = r.release() // Close has returned already
		}
		r.mu.Unlock()
		r.wake()
	}
}

// wake wakes the goroutine that receives.
func (r *Receiver) wake() {
	select {
	case r.wakeup <- struct{}{}:
	default:
	}
}

// post posts all receives that are free.
func (r *Receiver) post() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.postQueued = false
	if s := r.ctx.State(); r.closed || s != pe.Starting && s != pe.Running {
		return // stateChanged posts them when it is started
	}
	for len(r.free) > 0 {
		last := len(r.free) - 1
		err := r.submit(r.free[last])
		if errors.Is(err, pe.ErrBadState) {
			return // the context has failed just now
		}
		if err != nil {
			r.err = fmt.Errorf("await: receive messages: %w", err)
			r.wake()
			return
		}
		r.free = r.free[:last]
	}
}

// submit posts the receive of a message. The task has its own reference to the
// buffer, so that it can be freed before the message.
func (r *Receiver) submit(m *Message) error {
	if err := m.buf.Ref(); err != nil {
		return err
	}
	t, err := r.pool.Alloc(m.buf)
	if err != nil {
		return err
	}
	t.SetUserData(m)
	if err := t.Submit(pe.Aggregate); err != nil {
		return errors.Join(err, t.Free())
	}
	return nil
}

// received is the callback of a receive that took a message.
func (r *Receiver) received(t *rdma.ReceiveTask) {
	m := t.UserData().(*Message)
	m.fill(t)
	r.queue(m, t)
}

// failed is the callback of a receive that failed. A flushed receive had no message.
func (r *Receiver) failed(t *rdma.ReceiveTask, err error) {
	m := t.UserData().(*Message)
	m.fill(t) // sets only the connection
	m.err = err
	if !errors.Is(err, rdma.ErrFlushed) {
		r.queue(m, t)
		return
	}
	_ = t.Free() // cannot fail in its callback
	r.mu.Lock()
	r.free = append(r.free, m)
	r.mu.Unlock()
	r.post() // a failing connection may flush a receive while the context runs on
}

// queue queues a message for delivery.
func (r *Receiver) queue(m *Message, t *rdma.ReceiveTask) {
	_ = t.Free() // cannot fail in its callback
	r.mu.Lock()
	r.arrived = append(r.arrived, m)
	r.mu.Unlock()
	r.wake()
}
