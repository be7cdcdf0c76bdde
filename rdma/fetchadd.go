package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// FetchAddPool is a pool of fetch-and-adds.
type FetchAddPool struct{ pool[FetchAddTask] }

// FetchAddTask adds to a 64-bit value in the memory of the peer, in one step.
type FetchAddTask struct {
	request
	pool *FetchAddPool
}

func (t *FetchAddTask) succeeded()       { t.pool.done(t) }
func (t *FetchAddTask) failed(err error) { t.pool.failed(t, err) }

func fetchAddRequest(t *FetchAddTask) *request { return &t.request }

// FetchAddPool makes a pool of n fetch-and-adds. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) FetchAddPool(n int, done func(*FetchAddTask), failed func(*FetchAddTask, error)) (*FetchAddPool, error) {
	p := &FetchAddPool{}
	err := makeRequests(c, &p.pool, OpFetchAdd, n, done, failed, fetchAddRequest, func(t *FetchAddTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that adds to the value, modulo 2^64,
// of dst, 8 bytes of the peer's memory at an address that is a multiple of 8. The
// value that was there before goes to the room of result, a list, and is returned
// by Original; result may be nil. To submit the task again, ResetData of result or
// SetResult. The task takes over the caller's references, also when Alloc fails.
// Values are in the byte order of their hosts (IBTA 9.4.5). Errors match those of
// pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrRange and ErrPermission.
func (p *FetchAddPool) Alloc(conn *Connection, dst, result *bufinv.Buf, add uint64) (*FetchAddTask, error) {
	t, err := allocRequest(&p.pool, fetchAddRequest, conn, result, dst)
	if err != nil {
		return nil, err
	}
	t.send.WR.CompareAdd = add
	return t, nil
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *FetchAddTask) Free() error { return freeRequest(&t.pool.pool, fetchAddRequest, t) }

// Result is the buffer that the value before goes to, or nil.
func (t *FetchAddTask) Result() *bufinv.Buf { return t.local }

// SetResult exchanges the result buffer, as SetDestination does the destination.
func (t *FetchAddTask) SetResult(result *bufinv.Buf) error { return t.swap("result", &t.local, result) }

// Destination is the value of the peer.
func (t *FetchAddTask) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination. It takes over the caller's reference
// to the new one, in any case, and drops the one to the old.
func (t *FetchAddTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}

// Original is the value that the peer's memory held before, once the task has
// completed.
func (t *FetchAddTask) Original() uint64 { return t.old }

// Value is the value to be added.
func (t *FetchAddTask) Value() uint64 { return t.send.WR.CompareAdd }

// SetValue sets the value that the next submission adds.
func (t *FetchAddTask) SetValue(add uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	t.send.WR.CompareAdd = add
	return nil
}
