package await

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// What follows runs on the engine's goroutine.

// changed is told of the context's states.
func (r *Receiver) changed(_, next pe.State) {
	switch next {
	case pe.Starting, pe.Running:
		r.mu.Lock()
		r.over, r.err = false, nil
		r.mu.Unlock()
		r.post()
	case pe.Idle:
		r.mu.Lock()
		r.over = r.ctx.State() == pe.Idle // else it has been started again
		if err := r.ctx.Err(); err != nil {
			r.err = fmt.Errorf("await: receive messages: context %q has failed: %w", r.ctx.Name(), err)
		}
		if r.closed {
			_ = r.release() // nobody is there to be given the error
		}
		r.mu.Unlock()
		r.ring()
	}
}

// ring has the goroutine that receives look again.
func (r *Receiver) ring() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// post posts all receives that are free.
func (r *Receiver) post() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posting = false
	if r.closed || r.ctx.State() != pe.Running {
		return // when it is Running, changed does it
	}
	for len(r.free) > 0 {
		last := len(r.free) - 1
		err := r.submit(r.free[last])
		if errors.Is(err, pe.ErrBadState) {
			return // it has failed just now
		}
		if err != nil {
			r.err = fmt.Errorf("await: receive messages: %w", err)
			r.ring()
			return
		}
		r.free = r.free[:last]
	}
}

// submit posts the receive of a message. The task has a reference to the buffer of
// its own, so that it can go while the message stays.
func (r *Receiver) submit(m *Message) error {
	if err := m.buf.ResetData(); err != nil {
		return err
	}
	if err := m.buf.Ref(); err != nil {
		return err
	}
	t, err := r.pool.Alloc(m.buf)
	if err != nil {
		return err
	}
	t.SetUserData(m)
	if err := t.SubmitWith(pe.Aggregate); err != nil {
		return errors.Join(err, t.Free())
	}
	return nil
}

// received is the callback of receives that took a message.
func (r *Receiver) received(t *rdma.ReceiveTask) {
	m := t.UserData().(*Message)
	m.take(t)
	r.arrive(m, t)
}

// failed is that of those that did not. Those that were flushed had none to take.
func (r *Receiver) failed(t *rdma.ReceiveTask, err error) {
	m := t.UserData().(*Message)
	m.length, m.opcode, m.imm, m.conn, m.err = 0, rdma.ReceivedSend, 0, t.Connection(), err
	if !errors.Is(err, rdma.ErrFlushed) {
		r.arrive(m, t)
		return
	}
	_ = t.Free() // it came back just now
	r.mu.Lock()
	r.free = append(r.free, m)
	r.mu.Unlock()
	r.post() // a connection that fails may take one with it
}

// arrive queues a message.
func (r *Receiver) arrive(m *Message, t *rdma.ReceiveTask) {
	_ = t.Free() // it came back just now
	r.mu.Lock()
	r.arrived = append(r.arrived, m)
	r.mu.Unlock()
	r.ring()
}
