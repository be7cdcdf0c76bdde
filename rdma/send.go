package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// SendPool is a pool of sends.
type SendPool struct{ pool[SendTask] }

// SendTask sends a message, which takes a receive at the peer.
type SendTask struct {
	request
	pool *SendPool
}

func (t *SendTask) succeeded()       { t.pool.done(t) }
func (t *SendTask) failed(err error) { t.pool.failed(t, err) }

func sendRequest(t *SendTask) *request { return &t.request }

// SendPool makes a pool of n sends. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SendPool(n int, done func(*SendTask), failed func(*SendTask, error)) (*SendPool, error) {
	p := &SendPool{}
	err := makeRequests(c, &p.pool, OpSend, n, done, failed, sendRequest, func(t *SendTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that sends the data of src, a list. Nil sends
// a message of no bytes. The task takes over the caller's reference to src, also
// when Alloc fails. Errors match those of pe.Pool.Alloc, bufinv and mmap, and
// ErrInvalid, ErrNoData and ErrRange.
func (p *SendPool) Alloc(conn *Connection, src *bufinv.Buf) (*SendTask, error) {
	return allocRequest(&p.pool, sendRequest, conn, src, nil)
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *SendTask) Free() error { return freeRequest(&t.pool.pool, sendRequest, t) }

// Source is the list of buffers whose data is sent, or nil.
func (t *SendTask) Source() *bufinv.Buf { return t.local }

// SetSource exchanges the source. It takes over the caller's reference to the new
// one, in any case, and drops the one to the old.
func (t *SendTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.local, src) }
