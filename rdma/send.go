package rdma

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/verbs"
)

// sourceRequest is a request that takes data of this program to the peer.
type sourceRequest struct{ request }

// Source is the list of buffers whose data goes to the peer, or nil.
func (t *sourceRequest) Source() *bufinv.Buf { return t.local }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *sourceRequest) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.local, src) }

func (t *sourceRequest) setImm(imm uint32) error {
	if err := t.control.MayChange(&t.Task, "immediate data"); err != nil {
		return err
	}
	t.send.WR.Imm = imm
	return nil
}

// SendPool is a pool of sends.
type SendPool struct {
	requestPool[SendTask, *SendTask]
}

// SendTask sends a message, which takes a receive at the peer.
type SendTask struct{ sourceRequest }

// SendPool makes a pool of n sends. done and failed run on the engine's goroutine,
// inside Progress; the error is a *TaskError. It is legal in Idle. Its errors are
// those of pe.NewPool, and ErrNotSupported.
func (c *Context) SendPool(n int, done func(*SendTask), failed func(*SendTask, error)) (*SendPool, error) {
	return makePool(&SendPool{}, c, OpSend, n, done, failed)
}

// Alloc takes a task out of the pool that sends the data of src, a list. Nil sends
// a message of no bytes. The task takes over the caller's reference to src, also
// when Alloc fails. Errors match those of pe.Pool.Alloc, bufinv and mmap, and
// ErrInvalid, ErrNoData and ErrRange.
func (p *SendPool) Alloc(to Responder, src *bufinv.Buf) (*SendTask, error) {
	t, err := p.alloc(to, src, nil)
	if err == nil {
		t.send.WR.Op, t.send.WR.InvalidateRKey = verbs.OpSend, 0
	}
	return t, err
}

// SendImmPool is a pool of sends with immediate.
type SendImmPool struct {
	requestPool[SendImmTask, *SendImmTask]
}

// SendImmTask is a SendTask with 32 bits of immediate data.
type SendImmTask struct{ sourceRequest }

// SendImmPool makes a pool of n sends with immediate, as SendPool does.
func (c *Context) SendImmPool(n int, done func(*SendImmTask), failed func(*SendImmTask, error)) (*SendImmPool, error) {
	return makePool(&SendImmPool{}, c, OpSendImm, n, done, failed)
}

// Alloc is SendPool.Alloc with immediate data.
func (p *SendImmPool) Alloc(to Responder, src *bufinv.Buf, imm uint32) (*SendImmTask, error) {
	t, err := p.alloc(to, src, nil)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// Imm is the 32 bits of immediate data.
func (t *SendImmTask) Imm() uint32 { return t.send.WR.Imm }

// SetImm sets the immediate data of the next submission.
func (t *SendImmTask) SetImm(imm uint32) error { return t.setImm(imm) }
