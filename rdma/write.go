package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// writeRequest is what writes have in common.
type writeRequest struct{ sourceRequest }

// Destination is the memory of the peer that is written, or nil.
func (t *writeRequest) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination. It takes over the caller's reference to
// the new one, in any case, and drops the one to the old.
func (t *writeRequest) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}

// WritePool is a pool of writes.
type WritePool struct {
	requestPool[WriteTask, *WriteTask]
}

// WriteTask writes to the memory of the peer, whose program is not notified. When it
// completes, the peer's device has acknowledged it; that does not mean that the
// peer's program can see the data: see the package comment.
type WriteTask struct{ writeRequest }

// WritePool makes a pool of n writes. done and failed run on the engine's goroutine,
// inside Progress; the error is a *TaskError. It is legal in Idle. Its errors are
// those of pe.NewPool, and ErrNotSupported.
func (c *Context) WritePool(n int, done func(*WriteTask), failed func(*WriteTask, error)) (*WritePool, error) {
	return makePool(&WritePool{}, c, OpWrite, n, done, failed)
}

// Alloc takes a task out of the pool that writes the data of src, a list, to the
// room of dst, memory of the peer. With src nil it writes no bytes, and dst may be
// nil too. The task takes over the caller's references, also when Alloc fails.
// Writing does not change dst: the next submission writes to the same place.
// Errors match those of pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrNoData,
// ErrRange and ErrPermission.
func (p *WritePool) Alloc(to Responder, src, dst *bufinv.Buf) (*WriteTask, error) {
	return p.alloc(to, src, dst)
}

// WriteImmPool is a pool of writes with immediate.
type WriteImmPool struct {
	requestPool[WriteImmTask, *WriteImmTask]
}

// WriteImmTask is a WriteTask with 32 bits of immediate data, which take a receive at
// the peer: its program is notified of the write.
type WriteImmTask struct{ writeRequest }

// WriteImmPool makes a pool of n writes with immediate, as WritePool does.
func (c *Context) WriteImmPool(n int, done func(*WriteImmTask), failed func(*WriteImmTask, error)) (*WriteImmPool, error) {
	return makePool(&WriteImmPool{}, c, OpWriteImm, n, done, failed)
}

// Alloc is WritePool.Alloc with immediate data.
func (p *WriteImmPool) Alloc(to Responder, src, dst *bufinv.Buf, imm uint32) (*WriteImmTask, error) {
	t, err := p.alloc(to, src, dst)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// Imm is the 32 bits of immediate data.
func (t *WriteImmTask) Imm() uint32 { return t.send.WR.Imm }

// SetImm sets the immediate data of the next submission.
func (t *WriteImmTask) SetImm(imm uint32) error { return t.setImm(imm) }
