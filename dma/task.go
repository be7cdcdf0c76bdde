package dma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// CopyPool is a pool of copies.
type CopyPool struct {
	ctx    *Context
	tasks  *pe.Pool[CopyTask]
	done   func(*CopyTask)
	failed func(*CopyTask, error)
}

// CopyTask copies memory. The package comment says what it may copy.
type CopyTask struct {
	pe.Task
	control  backend.Control
	pool     *CopyPool
	place    fifo.Node[*CopyTask] // in the list of submitted tasks
	src, dst *bufinv.Buf
	appends  bool // to the data of dst
	length   int  // bytes that this submission copies

	// For one submission.
	unreported bool       // OptimizeReports
	from, to   cursor     // of the next segment
	left       int        // bytes not in a segment yet
	segments   int        // number at the device
	failure    *TaskError // the error of its segments
	kept       error      // why the device may still use its memory
	changed    error      // the buffers were changed in flight: the rest is not copied
}

// CopyPool makes a pool of n copies. done and failed run on the engine's goroutine,
// inside Progress; the error is a *TaskError, except where the buffers were changed in
// flight. It is legal in Idle. Its errors are those of backend.NewPool, and ErrInvalid.
func (c *Context) CopyPool(n int, done func(*CopyTask), failed func(*CopyTask, error)) (*CopyPool, error) {
	if done == nil || failed == nil {
		return nil, fmt.Errorf("dma: make a pool of copies: %w: give a function for tasks that succeed and one for tasks that fail", ErrInvalid)
	}
	p := &CopyPool{ctx: c, done: done, failed: failed}
	tasks, err := backend.NewPool(c.control, "copy", n,
		func(t *CopyTask) *pe.Task { return &t.Task },
		func(t *CopyTask) { t.control, t.pool, t.place.Value = c.control, p, t },
		func(t *CopyTask) { _ = t.drop() })
	if err != nil {
		return nil, err
	}
	p.tasks = tasks
	c.tasks += n
	return p, nil
}

// Cap is the number of tasks that the pool was made with.
func (p *CopyPool) Cap() int { return p.tasks.Cap() }

// Available is the number of tasks that can be allocated now.
func (p *CopyPool) Available() int { return p.tasks.Available() }

// Alloc takes a task out of the pool that copies the data of src to dst; both may be lists.
// Submit empties dst unless SetAppend has been called. The task takes over the caller's
// references, also when Alloc fails. Submit reports buffers that are right only for a copy
// that appends. Errors match those of pe.Pool.Alloc, bufinv and mmap, and ErrInvalid,
// ErrNoData, ErrRange and ErrOverlap.
func (p *CopyPool) Alloc(src, dst *bufinv.Buf) (*CopyTask, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		freeAll(src, dst)
		return nil, err
	}
	if err := p.ctx.checkNew(src, dst); err != nil {
		freeAll(src, dst)
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("dma: allocate a copy: %w", err)
	}
	t.src, t.dst, t.appends, t.length = src, dst, false, 0
	return t, nil
}

// freeAll frees buffers whose task could not be allocated.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}

// Submit gives the task to the device, together with earlier tasks held back by pe.Aggregate.
// The flags are pe.Aggregate and pe.OptimizeReports. Until its callback, the task, its buffers
// and their memory must not be touched. Submit empties the destination, unless SetAppend has
// been called. It checks the buffers as Alloc does, and allocates nothing. If it fails, the
// task remains the caller's, with the data in its destination. Errors match those of Alloc for
// the buffers, and pe.ErrBadState, pe.ErrInUse and pe.ErrFreed.
func (t *CopyTask) Submit(flags ...pe.SubmitFlags) error { return t.submit(backend.JoinFlags(flags)) }

// TrySubmit is the same as Submit, which already checks everything. It exists because tasks of
// other packages have it.
func (t *CopyTask) TrySubmit(flags ...pe.SubmitFlags) error { return t.Submit(flags...) }

// Flush gives the device all tasks held back by pe.Aggregate, as the next submission without
// the flag would. If there are none, and in Idle, it does nothing. It allocates nothing, and
// belongs to the goroutine that drives the engine.
func (c *Context) Flush() { c.post() }

func (t *CopyTask) submit(flags pe.SubmitFlags) error {
	if err := t.control.Begin(&t.Task, "submit a copy"); err != nil {
		return err
	}
	c := t.pool.ctx
	n, err := c.check(t.src, t.dst, t.appends)
	if err == nil && !t.appends {
		err = t.dst.Empty()
	}
	if err != nil {
		t.control.End(&t.Task)
		return fmt.Errorf("dma: submit a copy: %w", err)
	}
	t.length, t.left = n, n
	t.from, t.to = cursor{buf: t.src}, cursor{buf: t.dst}
	t.segments, t.failure, t.kept, t.changed = 0, nil, nil, nil
	t.unreported = flags&pe.OptimizeReports != 0
	c.push(t)
	if flags&pe.Aggregate == 0 {
		c.post()
	} else {
		c.poke()
	}
	return nil
}

// Free puts the task back into its pool and drops its references to its buffers.
// It is legal whenever the task is not in flight. Errors are those of
// pe.Pool.Free and bufinv.
func (t *CopyTask) Free() error {
	if err := t.pool.tasks.Free(t); err != nil {
		return err
	}
	return t.drop()
}

// drop releases the buffers of a freed task.
func (t *CopyTask) drop() error {
	src, dst := t.src, t.dst
	t.src, t.dst, t.appends, t.from, t.to = nil, nil, false, cursor{}, cursor{}
	err := src.Free()
	if e := dst.Free(); err == nil {
		err = e
	}
	return err
}

// Length is the number of bytes of the last submission.
func (t *CopyTask) Length() int { return t.length }

// Source is the list of buffers whose data is copied.
func (t *CopyTask) Source() *bufinv.Buf { return t.src }

// SetSource replaces the source. It always takes over the caller's reference to the new
// source, and drops the one to the old.
func (t *CopyTask) SetSource(src *bufinv.Buf) error { return t.swap("source", &t.src, src) }

// Destination is the list of buffers that the data goes to.
func (t *CopyTask) Destination() *bufinv.Buf { return t.dst }

// SetDestination replaces the destination, as SetSource does the source.
func (t *CopyTask) SetDestination(dst *bufinv.Buf) error {
	return t.swap("destination", &t.dst, dst)
}

// SetAppend makes the next submissions copy behind the data that is in the destination, until
// it is called again or the task is freed. Without it, each submission empties the destination
// first. In flight it fails with pe.ErrInUse.
func (t *CopyTask) SetAppend(on bool) error {
	if err := t.control.MayChange(&t.Task, "place in the destination"); err != nil {
		return err
	}
	t.appends = on
	return nil
}

func (t *CopyTask) swap(what string, slot **bufinv.Buf, b *bufinv.Buf) error {
	err := t.control.MayChange(&t.Task, what)
	if err == nil {
		err = b.Err()
	}
	if err != nil {
		freeAll(b)
		return fmt.Errorf("dma: set the %s of a copy: %w", what, err)
	}
	old := *slot
	*slot = b
	if old == b {
		return nil
	}
	return old.Free()
}

// keep keeps the memory of a copy from being reused.
func (t *CopyTask) keep(reason error) {
	if t.kept != nil {
		return
	}
	t.kept = reason
	t.src.Friends(friend.Package{}).Keep(t.pool.ctx.dev, reason)
	t.dst.Friends(friend.Package{}).Keep(t.pool.ctx.dev, reason)
}

func (t *CopyTask) succeed() {
	t.control.End(&t.Task)
	// It fails only if the program changed the buffers in flight.
	err := t.dst.Friends(friend.Package{}).AppendData(t.length)
	if err != nil {
		err = fmt.Errorf("dma: copy: the destination was changed in flight: %w", err)
	}
	t.completed(err)
}

func (t *CopyTask) fail(err error) {
	t.control.End(&t.Task)
	t.completed(err)
}

// completed runs the callback of the task, which is no longer in flight.
func (t *CopyTask) completed(err error) {
	if profiling.Tracing() {
		t.pool.ctx.Friends(friend.Package{}).Traced("verbena task callback", func() { t.call(err) })
		return
	}
	t.call(err)
}

func (t *CopyTask) call(err error) {
	if err != nil {
		t.pool.failed(t, err)
		return
	}
	t.pool.done(t)
}
