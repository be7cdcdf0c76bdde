package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// ReadPool is a pool of reads.
type ReadPool struct{ pool[ReadTask] }

// ReadTask reads from the memory of the peer, which does not take notice.
type ReadTask struct {
	request
	pool *ReadPool
}

func (t *ReadTask) succeeded()       { t.pool.done(t) }
func (t *ReadTask) failed(err error) { t.pool.failed(t, err) }

func readRequest(t *ReadTask) *request { return &t.request }

// ReadPool makes a pool of n reads. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) ReadPool(n int, done func(*ReadTask), failed func(*ReadTask, error)) (*ReadPool, error) {
	p := &ReadPool{}
	err := makeRequests(c, &p.pool, OpRead, n, done, failed, readRequest, func(t *ReadTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that reads the data of src, memory of the
// peer, into the room of dst, a list, behind the data that is there. With both nil
// it reads no bytes. To submit the task again, ResetData of dst or SetDestination.
// The task takes over the caller's references, also when Alloc fails. Errors match
// those of pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrNoData, ErrRange and
// ErrPermission.
func (p *ReadPool) Alloc(conn *Connection, src, dst *bufinv.Buf) (*ReadTask, error) {
	return allocRequest(&p.pool, readRequest, conn, dst, src)
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *ReadTask) Free() error { return freeRequest(&t.pool.pool, readRequest, t) }

// Source is the memory of the peer that is read.
func (t *ReadTask) Source() *bufinv.Buf { return t.remote }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *ReadTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.remote, src) }

// Destination is the list of buffers that the data goes to.
func (t *ReadTask) Destination() *bufinv.Buf { return t.local }

// SetDestination exchanges the destination, as SetSource does the source.
func (t *ReadTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.local, dst)
}
