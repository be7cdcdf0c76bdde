package rdma

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/verbs"
)

// Submit gives the task to the device, together with tasks that pe.Aggregate has made wait
// before it. The flags are pe.Aggregate and pe.OptimizeReports. From Submit to the callback,
// the task, its buffers and their memory must not be touched. Submit allocates nothing. It
// empties the destination of a read and the result of an atomic, unless SetAppend has been
// called.
//
// Submit checks only what nothing else would notice: the buffers, and that the data fits. What
// the device or the peer refuses fails the task later, and ends the connection; TrySubmit
// finds most of these faults before. If Submit fails, the task remains the caller's.
//
// On a connection that is Exported or Connecting, the task waits, in the order of submission,
// until the connection is Ready. If the connection ends before it is Ready, the task is
// flushed: it fails, and TaskError.Cause has the connection's reason.
//
// Errors match pe.ErrBadState, pe.ErrInUse and pe.ErrFreed, ErrNotReady on a connection that
// is Failed or Closed, ErrNotSupported, and those of Alloc for the buffers. If the device
// cannot reach the address of a Peer, the task fails with ErrRetryExceeded and the reason.
func (r *Task) Submit(flags ...pe.SubmitFlags) error {
	return r.submit(backend.JoinFlags(flags), false)
}

// TrySubmit is Submit after a check of everything that can be known here: also
// the permissions and bounds that the peer's descriptor gave, alignment, and the
// limits of the device.
func (r *Task) TrySubmit(flags ...pe.SubmitFlags) error {
	return r.submit(backend.JoinFlags(flags), true)
}

// Flush gives the device all tasks that wait because of pe.Aggregate, as the next submission
// without that flag would. If none wait, and in Idle, it does nothing. It allocates nothing,
// and belongs to the goroutine that drives the engine.
func (c *parts) Flush() { c.lanes.postAll() }

func (r *Task) submit(flags pe.SubmitFlags, thorough bool) error {
	if err := r.enqueue(flags, thorough); err != nil {
		return err
	}
	r.ctx.submitted(flags)
	return nil
}

// submitted gives the device what waits, or leaves that to Progress.
func (c *parts) submitted(flags pe.SubmitFlags) {
	if flags&pe.Aggregate == 0 {
		c.lanes.postAll()
	} else {
		c.postLater()
	}
}

// context implements submittable.
func (r *Task) context() *parts { return r.ctx }

// enqueue implements submittable.
func (r *Task) enqueue(flags pe.SubmitFlags, thorough bool) error {
	if err := r.control.Begin(&r.Task, operations[r.op].submit); err != nil {
		return err
	}
	if err := r.prepare(thorough); err != nil {
		r.control.End(&r.Task)
		return fmt.Errorf("rdma: %s: %w", operations[r.op].submit, err)
	}
	r.send.Unreported = flags&pe.OptimizeReports != 0
	r.to.submit(r)
	return nil
}

// prepare makes the work request describe this submission.
func (r *Task) prepare(thorough bool) error {
	if err := r.to.accepts(r); err != nil {
		return err
	}
	if thorough || !r.unchanged() {
		if err := r.build(thorough); err != nil {
			return err
		}
	}
	if err := r.to.address(r); err != nil {
		return err
	}
	switch {
	case r.event != nil:
		r.prepareEvent()
	case r.op.returnsData() && !r.appends && r.local != nil:
		return r.localVersion.follow(r.local, r.local.Empty)
	}
	return nil
}

// unchanged reports whether the work request describes the buffers as they are.
func (r *Task) unchanged() bool {
	return r.localVersion.describes(r.local) && r.remoteVersion.describes(r.remote)
}

// build builds the work request from the buffers.
func (r *Task) build(thorough bool) error {
	r.localVersion, r.remoteVersion = 0, 0
	if err := r.measure(); err != nil {
		return err
	}
	if thorough {
		if err := r.checkLimits(); err != nil {
			return err
		}
	}
	wr := &r.send.WR
	var err error
	if wr.SGL, err = r.gather(); err != nil {
		return err
	}
	wr.Flags = 0
	if r.fitsInline() {
		wr.Flags = verbs.FlagInline
	}
	if wr.Op == verbs.OpSendInvalidate {
		wr.Flags |= verbs.FlagFence // reads of the window complete before
	}
	wr.RKey, wr.RemoteAddr = 0, 0
	if r.remote != nil {
		wr.RKey = r.remote.Map().RKey()
		wr.RemoteAddr = r.remote.TailAddr()
		if r.op == OpRead {
			wr.RemoteAddr = r.remote.DataAddr()
		}
	}
	r.localVersion, r.remoteVersion = versionOf(r.local), versionOf(r.remote)
	return nil
}

// measure sets the number of bytes that a task moves, and checks that they fit.
func (r *Task) measure() error {
	if err := r.local.Err(); err != nil {
		return err
	}
	if err := r.remote.Err(); err != nil {
		return err
	}
	switch r.op {
	case OpSyncEventGet, OpSyncEventSet, OpSyncEventAdd:
		r.length = atomicSize
		return nil
	case OpSend, OpSendImm:
		return r.measureSource()
	case OpWrite, OpWriteImm:
		if err := r.measureSource(); err != nil {
			return err
		}
		if r.remote == nil {
			if r.length > 0 {
				return fmt.Errorf("%w: the write has %d bytes and no destination", ErrInvalid, r.length)
			}
			return nil
		}
		return r.checkRemote("destination", r.length)
	case OpAtomicWrite:
		if err := r.measureSource(); err != nil {
			return err
		}
		if r.length != atomicSize || r.remote == nil {
			return fmt.Errorf("%w: an atomic write has a source of 8 bytes, not %d, and a destination at the peer", ErrInvalid, r.length)
		}
		return r.checkRemote("destination", atomicSize)
	case OpRead:
		switch {
		case r.remote == nil && r.local == nil:
			r.length = 0
			return nil
		case r.remote == nil || r.local == nil:
			return fmt.Errorf("%w: a read needs a source at the peer and a local destination", ErrInvalid)
		case r.remote.DataLen() == 0:
			return fmt.Errorf("%w; make it with Source", ErrNoData)
		case r.remote.DataLen() > r.room():
			return fmt.Errorf("%w: the source has %d bytes, the destination has room for %d%s", ErrRange, r.remote.DataLen(), r.room(), r.roomAdvice())
		}
		r.length = r.remote.DataLen()
		return r.checkRemote("source", 0)
	default:
		switch {
		case r.remote == nil:
			return fmt.Errorf("%w: an atomic needs a destination at the peer", ErrInvalid)
		case r.local != nil && r.room() < atomicSize:
			return fmt.Errorf("%w: the result has 8 bytes, its buffer has room for %d%s", ErrRange, r.room(), r.roomAdvice())
		}
		for b := r.local; b != nil; b = b.Next() {
			if b.Memory() == nil {
				return fmt.Errorf("%w: the result buffer is memory of the peer or of a dma-buf; use memory that this program can read and write", ErrInvalid)
			}
		}
		r.length = atomicSize
		return r.checkRemote("destination", atomicSize)
	}
}

// roomAdvice is the end of an error text about a destination that is too small.
func (r *Task) roomAdvice() string {
	if n := r.local.ListDataLen(); r.appends && n > 0 {
		return fmt.Sprintf(" after the %d in it; call SetAppend(false), or empty it", n)
	}
	return "; use a larger one"
}

// measureSource measures a local source. No buffer at all is a message of no
// bytes; a buffer without data is a mistake.
func (r *Task) measureSource() error {
	r.length = r.local.ListDataLen()
	if r.local != nil && r.length == 0 {
		return fmt.Errorf("%w; make it with Source, or give no buffer for a message of no bytes", ErrNoData)
	}
	return nil
}

// checkRemote checks the side at the peer, which must have room for n bytes.
func (r *Task) checkRemote(side string, n int) error {
	switch {
	case !r.remote.Remote():
		return fmt.Errorf("%w: the %s is local memory; import the peer's memory map", ErrInvalid, side)
	case r.remote.Next() != nil:
		return fmt.Errorf("%w: the %s is a list; memory of the peer must be a single buffer", ErrInvalid, side)
	case r.remote.Room() < n:
		return fmt.Errorf("%w: the %s has room for %d bytes, but %d would be written; make it with Target",
			ErrRange, side, r.remote.Room(), n)
	}
	return nil
}

// checkLimits checks everything that the device or the peer would refuse.
func (r *Task) checkLimits() error {
	if err := r.checkSize(); err != nil {
		return err
	}
	if r.op.onEvent() {
		return r.checkEvent(r.event)
	}
	if r.remote != nil {
		need := mmap.RemoteWrite
		switch {
		case r.op == OpRead:
			need = mmap.RemoteRead
		case r.op.atomic():
			need = mmap.RemoteAtomic
		}
		if have := r.remote.Map().Permissions(); !have.Has(need) {
			return fmt.Errorf("%w: the peer's memory map grants %v, but the task needs %v", ErrPermission, have, need)
		}
	}
	if r.op.changesWord() {
		if addr := r.remote.TailAddr(); addr%atomicSize != 0 {
			return fmt.Errorf("%w: the peer's address %#x is not a multiple of 8", ErrRange, addr)
		}
	}
	return nil
}

// checkSize checks the number of bytes moved.
func (r *Task) checkSize() error {
	most := r.ctx.set.caps.MaxMessage
	if r.op == OpSend || r.op == OpSendImm {
		most = r.ctx.maxSend()
	}
	if uint64(r.length) > uint64(most) {
		return fmt.Errorf("%w: the task would move %d bytes; %s moves at most %d in one %v over %v", ErrRange, r.length, r.ctx.dev.Name(), most, r.op, r.ctx.set.Transport)
	}
	return nil
}

// gather builds the local scatter-gather list, in memory of the task.
func (r *Task) gather() ([]verbs.SGE, error) {
	if r.op.usesScratch() {
		// Through scratch memory, so that the result buffer may have any shape.
		return append(r.sgl[:0], r.pool.words.SGE(r.word)), nil
	}
	var list []verbs.SGE
	var err error
	switch {
	case r.op != OpRead:
		list, err = r.local.Friends(friend.Package{}).AppendDataSGL(r.sgl[:0], r.ctx.set.PD)
	case r.appends:
		list, err = r.local.Friends(friend.Package{}).AppendRoomSGL(r.sgl[:0], r.ctx.set.PD, r.length)
	default:
		list, err = r.local.Friends(friend.Package{}).AppendEmptiedSGL(r.sgl[:0], r.ctx.set.PD, r.length)
	}
	if err != nil {
		return nil, err
	}
	if most := r.ctx.set.caps.MaxRDMASGE; r.op != OpSend && r.op != OpSendImm && len(list) > most {
		return nil, fmt.Errorf("%w: the list has %d buffers; a read or write over %v on %s has at most %d", ErrRange, len(list), r.ctx.set.Transport, r.ctx.dev.Name(), most)
	}
	return list, checkList(list, cap(r.sgl))
}

func checkList(list []verbs.SGE, most int) error {
	if len(list) > most {
		return fmt.Errorf("%w: the list has %d buffers; the context allows %d: raise Config.MaxSGE", ErrRange, len(list), most)
	}
	return nil
}

// fitsInline reports whether the data can be posted inline. The processor then copies the
// data, which it cannot do from a dma-buf.
func (r *Task) fitsInline() bool {
	if r.op.returnsData() || r.length == 0 || r.length > r.ctx.set.inline {
		return false
	}
	if r.ctx.set.Transport == verbs.SRD && r.op != OpSend && r.op != OpSendImm {
		return false // EFA has it in sends only
	}
	for b := r.local; b != nil; b = b.Next() {
		if b.Memory() == nil {
			return false
		}
	}
	return true
}

// completer is a Task as the lane.Completer of its request.
type completer Task

// Completed implements lane.Completer.
func (c *completer) Completed(status verbs.Status, vendor uint32) {
	r := (*Task)(c)
	r.to.completed(r, status, vendor)
}

// keepMemory keeps the memory of a flushed task that the device may still use.
func (r *Task) keepMemory(err *TaskError) {
	if kept := r.send.Kept(); kept != nil {
		err.Cause = kept
		r.local.Friends(friend.Package{}).Keep(r.ctx.dev, kept)
	}
}

// succeed ends a task that the device has carried out.
func (r *Task) succeed() {
	r.control.End(&r.Task)
	switch {
	case r.op == OpRead && r.local != nil:
		// It fails only if the program has changed the buffers meanwhile.
		if err := r.produced(); err != nil {
			r.pool.completed(r, fmt.Errorf("rdma: %v: the destination was changed in flight: %w", r.op, err))
			return
		}
	case r.op == OpSyncEventGet:
		r.takeValue()
	case r.op.atomic():
		if err := r.takeOriginal(); err != nil {
			r.pool.completed(r, fmt.Errorf("rdma: %v: the result buffer was changed in flight: %w", r.op, err))
			return
		}
	}
	r.pool.completed(r, nil)
}

// produced makes the bytes that a read has brought data of the destination.
func (r *Task) produced() error {
	if r.appends {
		r.localVersion = 0 // the next ones go behind them
	}
	return r.localVersion.follow(r.local, func() error { return r.local.Friends(friend.Package{}).AppendData(r.length) })
}

// takeOriginal takes the result of an atomic, which is in the byte order of the host.
func (r *Task) takeOriginal() error {
	result := r.pool.words.bytes(r.word)
	r.result = binary.NativeEndian.Uint64(result)
	if r.local == nil {
		return nil
	}
	if r.appends {
		r.localVersion = 0 // the next one goes behind it
	}
	return r.localVersion.follow(r.local, func() error { return r.local.Append(result) })
}
