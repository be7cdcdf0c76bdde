package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// SendImmPool is a pool of sends with immediate.
type SendImmPool struct{ pool[SendImmTask] }

// SendImmTask is a SendTask that brings 32 bits of immediate data along.
type SendImmTask struct {
	request
	pool *SendImmPool
}

func (t *SendImmTask) succeeded()       { t.pool.done(t) }
func (t *SendImmTask) failed(err error) { t.pool.failed(t, err) }

func sendImmRequest(t *SendImmTask) *request { return &t.request }

// SendImmPool makes a pool of n sends with immediate. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SendImmPool(n int, done func(*SendImmTask), failed func(*SendImmTask, error)) (*SendImmPool, error) {
	p := &SendImmPool{}
	err := makeRequests(c, &p.pool, OpSendImm, n, done, failed, sendImmRequest, func(t *SendImmTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc is SendPool.Alloc with immediate data.
func (p *SendImmPool) Alloc(conn *Connection, src *bufinv.Buf, imm uint32) (*SendImmTask, error) {
	t, err := allocRequest(&p.pool, sendImmRequest, conn, src, nil)
	if err != nil {
		return nil, err
	}
	t.send.WR.Imm = imm
	return t, nil
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *SendImmTask) Free() error { return freeRequest(&t.pool.pool, sendImmRequest, t) }

// Source is the list of buffers whose data is sent, or nil.
func (t *SendImmTask) Source() *bufinv.Buf { return t.local }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *SendImmTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.local, src) }

// Imm is the 32 bits of immediate data.
func (t *SendImmTask) Imm() uint32 { return t.send.WR.Imm }

// SetImm sets the immediate data of the next submission.
func (t *SendImmTask) SetImm(imm uint32) error {
	if err := t.control.MayChange(&t.Task, "immediate data"); err != nil {
		return err
	}
	t.send.WR.Imm = imm
	return nil
}
