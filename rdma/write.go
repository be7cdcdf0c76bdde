package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// WritePool is a pool of writes.
type WritePool struct{ pool[WriteTask] }

// WriteTask writes to the memory of the peer, which does not take notice. That it has
// completed means that the peer's device has acknowledged it, not that the peer's
// program can see it: see the package comment.
type WriteTask struct {
	request
	pool *WritePool
}

func (t *WriteTask) succeeded()       { t.pool.done(t) }
func (t *WriteTask) failed(err error) { t.pool.failed(t, err) }

func writeRequest(t *WriteTask) *request { return &t.request }

// WritePool makes a pool of n writes. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) WritePool(n int, done func(*WriteTask), failed func(*WriteTask, error)) (*WritePool, error) {
	p := &WritePool{}
	err := makeRequests(c, &p.pool, OpWrite, n, done, failed, writeRequest, func(t *WriteTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that writes the data of src, a list, to the
// room of dst, memory of the peer. With src nil it writes no bytes, and dst may be
// nil too. The task takes over the caller's references, also when Alloc fails.
// Writing does not change dst: the next submission writes to the same place.
// Errors match those of pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrNoData,
// ErrRange and ErrPermission.
func (p *WritePool) Alloc(conn *Connection, src, dst *bufinv.Buf) (*WriteTask, error) {
	return allocRequest(&p.pool, writeRequest, conn, src, dst)
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *WriteTask) Free() error { return freeRequest(&t.pool.pool, writeRequest, t) }

// Source is the list of buffers whose data is written, or nil.
func (t *WriteTask) Source() *bufinv.Buf { return t.local }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *WriteTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.local, src) }

// Destination is the memory of the peer that is written.
func (t *WriteTask) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination, as SetSource does its buffer.
func (t *WriteTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}
