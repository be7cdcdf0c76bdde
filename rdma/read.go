package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// ReadPool is a pool of reads.
type ReadPool struct {
	requestPool[ReadTask, *ReadTask]
}

// ReadTask reads from the memory of the peer, whose program is not notified.
type ReadTask struct{ request }

// ReadPool makes a pool of n reads. done and failed run on the engine's goroutine,
// inside Progress; the error is a *TaskError, except where the destination was
// changed in flight. It is legal in Idle. Its errors are those of pe.NewPool, and
// ErrNotSupported.
func (c *Context) ReadPool(n int, done func(*ReadTask), failed func(*ReadTask, error)) (*ReadPool, error) {
	return makePool(&ReadPool{}, c, OpRead, n, done, failed)
}

// Alloc takes a task out of the pool that reads the data of src, memory of the
// peer, into dst, a list, which Submit empties unless SetAppend has been called. With
// both nil it reads no bytes. The task takes over the caller's references, also when
// Alloc fails. Errors match those of pe.Pool.Alloc, bufinv and mmap, and ErrInvalid,
// ErrNoData, ErrRange and ErrPermission.
func (p *ReadPool) Alloc(to Responder, src, dst *bufinv.Buf) (*ReadTask, error) {
	return p.alloc(to, dst, src)
}

// Source is the memory of the peer that is read, or nil.
func (t *ReadTask) Source() *bufinv.Buf { return t.remote }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *ReadTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.remote, src) }

// Destination is the list of buffers that the data goes to, or nil.
func (t *ReadTask) Destination() *bufinv.Buf { return t.local }

// SetDestination exchanges the destination, as SetSource does the source.
func (t *ReadTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.local, dst)
}

// SetAppend has the next submissions put what they read behind the data that is in the
// destination, until it is called again or the task is freed; without it, each begins with
// an empty one. In flight it fails with pe.ErrInUse.
func (t *ReadTask) SetAppend(on bool) error { return t.setAppend(on) }
