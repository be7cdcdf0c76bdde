package rdma

import "github.com/verbena-rdma/verbena/bufinv"

// atomicRequest is what atomics on memory of the peer have in common.
type atomicRequest struct{ request }

// Destination is the 64-bit value of the peer.
func (t *atomicRequest) Destination() *bufinv.Buf { return t.remote }

// SetDestination exchanges the destination. It takes over the caller's reference to
// the new one, in any case, and drops the one to the old.
func (t *atomicRequest) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.remote, dst)
}

// Result is the list of buffers that the original value goes to, or nil.
func (t *atomicRequest) Result() *bufinv.Buf { return t.local }

// SetResult exchanges the result buffer, as SetDestination does the destination.
func (t *atomicRequest) SetResult(result *bufinv.Buf) error {
	return t.swap("result", &t.local, result)
}

// SetAppend has the original values of the next submissions go behind the data that is in
// the result buffer, as ReadTask.SetAppend does.
func (t *atomicRequest) SetAppend(on bool) error { return t.setAppend(on) }

// Original is the value that the peer's memory had before, once the task has
// completed.
func (t *atomicRequest) Original() uint64 { return t.result }

// CompareSwapPool is a pool of compare-and-swaps.
type CompareSwapPool struct {
	requestPool[CompareSwapTask, *CompareSwapTask]
}

// CompareSwapTask replaces a 64-bit value in the memory of the peer if it is the one
// expected, in one step.
type CompareSwapTask struct{ atomicRequest }

// CompareSwapPool makes a pool of n compare-and-swaps. done and failed run on the
// engine's goroutine, inside Progress; the error is a *TaskError, except where the
// result buffer was changed in flight. It is legal in Idle. Its errors are those of
// pe.NewPool, and ErrNotSupported.
func (c *Context) CompareSwapPool(n int, done func(*CompareSwapTask), failed func(*CompareSwapTask, error)) (*CompareSwapPool, error) {
	return makePool(&CompareSwapPool{}, c, OpCompareSwap, n, done, failed)
}

// Alloc takes a task out of the pool that stores swap if compare is the value
// of dst, 8 bytes of the peer's memory at an address that is a multiple of 8. The
// value that was there before goes to result, a list, which Submit empties unless SetAppend
// has been called, and is returned by Original; result may be nil. The task takes over the caller's references, also when Alloc fails.
// Values are in the byte order of their hosts (IBTA 9.4.5). Errors match those of
// pe.Pool.Alloc, bufinv and mmap, and ErrInvalid, ErrRange and ErrPermission.
func (p *CompareSwapPool) Alloc(conn *Connection, dst, result *bufinv.Buf, compare, swap uint64) (*CompareSwapTask, error) {
	t, err := p.alloc(conn, result, dst)
	if err == nil {
		t.send.WR.CompareAdd, t.send.WR.Swap = compare, swap
	}
	return t, err
}

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

// FetchAddPool is a pool of fetch-and-adds.
type FetchAddPool struct {
	requestPool[FetchAddTask, *FetchAddTask]
}

// FetchAddTask adds to a 64-bit value in the memory of the peer, in one step.
type FetchAddTask struct{ atomicRequest }

// FetchAddPool makes a pool of n fetch-and-adds, as CompareSwapPool does.
func (c *Context) FetchAddPool(n int, done func(*FetchAddTask), failed func(*FetchAddTask, error)) (*FetchAddPool, error) {
	return makePool(&FetchAddPool{}, c, OpFetchAdd, n, done, failed)
}

// Alloc takes a task out of the pool that adds to the value of dst, modulo 2^64.
// Everything else is as in CompareSwapPool.Alloc.
func (p *FetchAddPool) Alloc(conn *Connection, dst, result *bufinv.Buf, add uint64) (*FetchAddTask, error) {
	t, err := p.alloc(conn, result, dst)
	if err == nil {
		t.send.WR.CompareAdd = add
	}
	return t, err
}

// Value is the value to be added.
func (t *FetchAddTask) Value() uint64 { return t.send.WR.CompareAdd }

// SetValue sets the value that the next submission adds.
func (t *FetchAddTask) SetValue(add uint64) error { return t.setOperand(add) }
