package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// WriteImmPool is a pool of writes with immediate.
type WriteImmPool struct{ pool[WriteImmTask] }

// WriteImmTask is a WriteTask that brings 32 bits of immediate data along, which take a
// receive at the peer: its program learns of the write.
type WriteImmTask struct {
	request
	pool *WriteImmPool
}

func (t *WriteImmTask) succeeded()       { t.pool.done(t) }
func (t *WriteImmTask) failed(err error) { t.pool.failed(t, err) }

func writeImmRequest(t *WriteImmTask) *request { return &t.request }

// WriteImmPool makes a pool of n writes with immediate. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) WriteImmPool(n int, done func(*WriteImmTask), failed func(*WriteImmTask, error)) (*WriteImmPool, error) {
	p := &WriteImmPool{}
	err := makeRequests(c, &p.pool, OpWriteImm, n, done, failed, writeImmRequest, func(t *WriteImmTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc is WritePool.Alloc with immediate data.
func (p *WriteImmPool) Alloc(conn *Connection, src, dst *bufinv.Buf, imm uint32) (*WriteImmTask, error) {
	t, err := allocRequest(&p.pool, writeImmRequest, conn, src, dst)
	if err != nil {
		return nil, err
	}
	t.send.WR.Imm = imm
	return t, nil
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *WriteImmTask) Free() error { return freeRequest(&t.pool.pool, writeImmRequest, t) }

// Source is the list of buffers whose data is written, or nil.
func (t *WriteImmTask) Source() *bufinv.Buf { return t.local }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *WriteImmTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.local, src) }

// Destination is the memory of the peer that is written.
func (t *WriteImmTask) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination, as SetSource does its buffer.
func (t *WriteImmTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}

// Imm is the 32 bits of immediate data.
func (t *WriteImmTask) Imm() uint32 { return t.send.WR.Imm }

// SetImm sets the immediate data of the next submission.
func (t *WriteImmTask) SetImm(imm uint32) error {
	if err := t.control.MayChange(&t.Task, "immediate data"); err != nil {
		return err
	}
	t.send.WR.Imm = imm
	return nil
}
