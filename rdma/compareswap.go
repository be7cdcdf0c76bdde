package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// CompareSwapPool is a pool of compare-and-swaps.
type CompareSwapPool struct{ pool[CompareSwapTask] }

// CompareSwapTask replaces a 64-bit value in the memory of the peer, if it is the one
// expected, in one step.
type CompareSwapTask struct {
	request
	pool *CompareSwapPool
}

func (t *CompareSwapTask) succeeded()       { t.pool.done(t) }
func (t *CompareSwapTask) failed(err error) { t.pool.failed(t, err) }

func compareSwapRequest(t *CompareSwapTask) *request { return &t.request }

// CompareSwapPool makes a pool of n compare-and-swaps. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. It is legal in Idle.
// Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) CompareSwapPool(n int, done func(*CompareSwapTask), failed func(*CompareSwapTask, error)) (*CompareSwapPool, error) {
	p := &CompareSwapPool{}
	err := makeRequests(c, &p.pool, OpCompareSwap, n, done, failed, compareSwapRequest, func(t *CompareSwapTask) finisher {
		t.pool = p
		return t
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that stores swap if compare is the value
// of dst, 8 bytes of the peer's memory at an address that is a multiple of 8. The
// value that was there before goes to the room of result, a list, and is returned
// by Original; result may be nil. To submit the task again, ResetData of result or
// SetResult. The task takes over the caller's references, also when Alloc fails.
// Values are in the byte order of their hosts (IBTA 9.4.5). Errors match those of
// pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrRange and ErrPermission.
func (p *CompareSwapPool) Alloc(conn *Connection, dst, result *bufinv.Buf, compare, swap uint64) (*CompareSwapTask, error) {
	t, err := allocRequest(&p.pool, compareSwapRequest, conn, result, dst)
	if err != nil {
		return nil, err
	}
	t.send.WR.CompareAdd, t.send.WR.Swap = compare, swap
	return t, nil
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *CompareSwapTask) Free() error { return freeRequest(&t.pool.pool, compareSwapRequest, t) }

// Result is the buffer that the value before goes to, or nil.
func (t *CompareSwapTask) Result() *bufinv.Buf { return t.local }

// SetResult exchanges the result buffer, as SetDestination does the destination.
func (t *CompareSwapTask) SetResult(result *bufinv.Buf) error {
	return t.swap("result", &t.local, result)
}

// Destination is the value of the peer.
func (t *CompareSwapTask) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination. It takes over the caller's reference
// to the new one, in any case, and drops the one to the old.
func (t *CompareSwapTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}

// Original is the value that the peer's memory held before, once the task has
// completed.
func (t *CompareSwapTask) Original() uint64 { return t.old }

// Values returns the value expected and the one to be stored.
func (t *CompareSwapTask) Values() (compare, swap uint64) {
	return t.send.WR.CompareAdd, t.send.WR.Swap
}

// SetValues sets the values of the next submission.
func (t *CompareSwapTask) SetValues(compare, swap uint64) error {
	if err := t.control.MayChange(&t.Task, "values"); err != nil {
		return err
	}
	t.send.WR.CompareAdd, t.send.WR.Swap = compare, swap
	return nil
}
