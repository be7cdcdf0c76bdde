package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Task is one operation on the memory or the program of a peer. A method of a pool allocates
// it for that operation. It runs on a connection or, in a context of datagrams, goes to a
// Peer. It can be submitted again and again, until Free puts it back into the pool.
type Task struct {
	pe.Task
	control backend.Control
	ctx     *parts
	pool    *taskPool
	to      target
	handle  *addressHandle // of the peer, in flight; nil on connections
	send    lane.Request
	op      Operation
	local   *bufinv.Buf
	remote  *bufinv.Buf
	appends bool // to the data of local, if the operation returns data
	length  int  // bytes that this submission moves
	// The versions of local and remote that send describes. If localVersion is 0, it describes
	// neither.
	localVersion, remoteVersion bufferVersion
	event                       *syncevent.Event
	word                        int         // of the pool, for the operand of an atomic or sync event
	result                      uint64      // of an atomic, or of a get
	sgl                         []verbs.SGE // its capacity is the longest list
}

// target is where a task goes: a *Connection or a *Peer.
type target interface {
	// belongsTo fails if the target does not belong to the context.
	belongsTo(c *parts) error
	// accepts reports why a task cannot be submitted now.
	accepts(t *Task) error
	// address puts the target's address into the work request of a task that has been measured.
	address(t *Task) error
	// submit gives the task to a lane.
	submit(t *Task)
	// completed ends a task that the device has given back.
	completed(t *Task, status verbs.Status, vendor uint32)
}

// Free puts the task back into its pool and drops its references to its buffers, or
// to its sync event. It is legal whenever the task is not in flight. Errors are those
// of pe.Pool.Free and bufinv.
func (r *Task) Free() error {
	if err := r.pool.tasks.Free(r); err != nil {
		return err
	}
	return r.drop()
}

// Operation is what the task was allocated for, also after it has failed.
func (r *Task) Operation() Operation { return r.op }

// Connection is the connection that the task runs on, or nil if it goes to a Peer.
func (r *Task) Connection() *Connection {
	conn, _ := r.to.(*Connection)
	return conn
}

// SetConnection moves the task to another connection of the same context, for its
// next submission. Errors match pe.ErrInUse in flight, and ErrInvalid.
func (r *Task) SetConnection(conn *Connection) error {
	return r.setTarget("connection", conn)
}

// Peer is the endpoint that the task goes to, or nil if it runs on a Connection.
func (r *Task) Peer() *Peer {
	p, _ := r.to.(*Peer)
	return p
}

// SetPeer sets the endpoint that the next submissions of the task go to. Errors match
// pe.ErrInUse in flight, and ErrInvalid.
func (r *Task) SetPeer(p *Peer) error {
	return r.setTarget("peer", p)
}

func (r *Task) setTarget(what string, to target) error {
	if err := r.control.MayChange(&r.Task, what); err != nil {
		return err
	}
	if err := to.belongsTo(r.ctx); err != nil {
		return fmt.Errorf("rdma: set the %s of a %v: %w", what, r.op, err)
	}
	r.to = to
	return nil
}

// Bytes is the number of bytes that the last submission moves or, if it has succeeded, has
// moved: 8 for an atomic or a sync event, and 0 before the first.
func (r *Task) Bytes() int { return r.length }

// swap replaces a buffer, and drops the reference to the old one. It takes over the new one in
// any case.
func (r *Task) swap(what string, slot **bufinv.Buf, b *bufinv.Buf) error {
	err := r.mayChange(what, slot != nil)
	if err == nil {
		if err = b.Err(); err != nil {
			err = fmt.Errorf("rdma: set the %s of a %v: %w", what, r.op, err)
		}
	}
	if err != nil {
		_ = b.Free() // the error at hand says more
		return err
	}
	old := *slot
	*slot, r.localVersion = b, 0
	if old != b {
		return old.Free()
	}
	return nil
}

// mayChange checks that the task is not in flight, and that its operation has the field.
func (r *Task) mayChange(what string, has bool) error {
	if err := r.control.MayChange(&r.Task, what); err != nil {
		return err
	}
	if !has {
		return fmt.Errorf("rdma: set the %s of a %v: %w: the operation has none", what, r.op, ErrInvalid)
	}
	return nil
}

// side is the field of the buffer on that side, or nil if the operation has none.
func (r *Task) side(local, remote bool) **bufinv.Buf {
	switch {
	case local:
		return &r.local
	case remote:
		return &r.remote
	}
	return nil
}

func (r *Task) source() **bufinv.Buf { return r.side(r.op.sends() || r.op.writes(), r.op == OpRead) }

func (r *Task) destination() **bufinv.Buf {
	return r.side(r.op == OpRead, r.op.writes() || r.op == OpCompareSwap || r.op == OpFetchAdd)
}

func (r *Task) resultBuffer() **bufinv.Buf {
	return r.side(r.op == OpCompareSwap || r.op == OpFetchAdd, false)
}

// bufferAt returns the buffer of a side, or nil.
func bufferAt(slot **bufinv.Buf) *bufinv.Buf {
	if slot == nil {
		return nil
	}
	return *slot
}

// Source is where the data comes from: for a send or write, a list of buffers; for a read,
// memory of the peer. It is nil if none was given, and for other operations.
func (r *Task) Source() *bufinv.Buf { return bufferAt(r.source()) }

// SetSource replaces the source. It takes over the caller's reference to the new one, in any
// case, and drops the reference to the old one. Errors match pe.ErrInUse in flight, ErrInvalid
// if the operation has no source, and those of bufinv.
func (r *Task) SetSource(src *bufinv.Buf) error { return r.swap("source", r.source(), src) }

// Destination is the memory of the peer that a write or an atomic changes, or the list of buffers
// that a read fills. It is nil if none was given, and for other operations.
func (r *Task) Destination() *bufinv.Buf { return bufferAt(r.destination()) }

// SetDestination replaces the destination, as SetSource replaces the source.
func (r *Task) SetDestination(dst *bufinv.Buf) error {
	return r.swap("destination", r.destination(), dst)
}

// Result is the list of buffers that the original value goes to, besides Original, or nil.
func (r *Task) Result() *bufinv.Buf { return bufferAt(r.resultBuffer()) }

// SetResult makes a compare-and-swap or fetch-and-add store the original value in a list of
// buffers, as 8 bytes in the byte order of this host. Submit empties the list unless SetAppend
// has been called. Nil ends this. References and errors are as with SetSource.
func (r *Task) SetResult(result *bufinv.Buf) error {
	return r.swap("result", r.resultBuffer(), result)
}

// SetAppend makes the next submissions of a read or an atomic append to the destination or
// result, until it is called again or the task is freed. Without it, each submission begins
// with an empty list. It has no effect on other operations. In flight, it fails with
// pe.ErrInUse.
func (r *Task) SetAppend(on bool) error {
	if err := r.control.MayChange(&r.Task, "place in the destination"); err != nil {
		return err
	}
	r.appends, r.localVersion = on, 0
	return nil
}

// Imm is the 32 bits of immediate data of a send or write with immediate; 0 for other
// operations.
func (r *Task) Imm() uint32 { return r.send.WR.Imm }

// SetImm sets the immediate data of the next submission. Errors match pe.ErrInUse in flight,
// and ErrInvalid if the operation has none.
func (r *Task) SetImm(imm uint32) error {
	if err := r.mayChange("immediate data", r.op.immediate()); err != nil {
		return err
	}
	r.send.WR.Imm = imm
	return nil
}

// Value is what a fetch-and-add or an addition to a sync event adds, or what a sync event is
// set to; 0 for other operations.
func (r *Task) Value() uint64 {
	if r.op.hasValue() {
		return r.send.WR.CompareAdd
	}
	return 0
}

// SetValue sets the value of the next submission. Errors are those of SetImm.
func (r *Task) SetValue(v uint64) error {
	if err := r.mayChange("value", r.op.hasValue()); err != nil {
		return err
	}
	r.send.WR.CompareAdd = v
	return nil
}

// Values returns the value that a compare-and-swap expects, and the one that it stores; zeroes
// for other operations.
func (r *Task) Values() (compare, swap uint64) {
	if r.op == OpCompareSwap {
		return r.send.WR.CompareAdd, r.send.WR.Swap
	}
	return 0, 0
}

// SetValues sets the values of the next submission. Errors are those of SetImm.
func (r *Task) SetValues(compare, swap uint64) error {
	if err := r.mayChange("values", r.op == OpCompareSwap); err != nil {
		return err
	}
	r.send.WR.CompareAdd, r.send.WR.Swap = compare, swap
	return nil
}

// Original is the value of the peer's memory before a compare-and-swap or fetch-and-add, or of
// its sync event before an addition or at a get. It is that of the last submission that
// succeeded: 0 before the first, and for other operations.
func (r *Task) Original() uint64 { return r.result }

// room is how many bytes the destination or result has room for.
func (r *Task) room() int {
	if r.appends {
		return r.local.ListRoom()
	}
	return r.local.Friends(friend.Package{}).ListEmptiedRoom()
}

// drop releases the buffers and the event of a freed task.
func (r *Task) drop() error {
	local, remote, event := r.local, r.remote, r.event
	r.to, r.local, r.remote, r.event, r.appends = nil, nil, nil, nil, false
	r.localVersion = 0
	if event != nil {
		return event.Friends(friend.Package{}).Release()
	}
	err := local.Free()
	if e := remote.Free(); err == nil {
		err = e
	}
	return err
}

// atomicSize is the width of an atomic, in bytes, and its alignment.
const atomicSize = 8

// taskPool is what the pools of tasks of the two kinds of context have in common.
type taskPool struct {
	pool[Task]
	words words // of the tasks, by their number in the pool
}

// completed runs the callback of a task, which is no longer in flight.
func (p *taskPool) completed(t *Task, err error) {
	if profiling.Tracing() {
		t.ctx.Friends(friend.Package{}).Traced("verbena task callback", func() { p.call(t, err) })
		return
	}
	p.call(t, err)
}

func (p *taskPool) call(t *Task, err error) {
	if err != nil {
		p.failed(t, err)
		return
	}
	p.done(t)
}

// bufferVersion is the version of the buffer that a request describes. Zero: the request is to be
// built anew. A request that is posted again describes the same buffer in most programs.
type bufferVersion uint64

func versionOf(b *bufinv.Buf) bufferVersion {
	return bufferVersion(b.Friends(friend.Package{}).Version())
}

// describes reports whether the buffer is as it was.
func (v bufferVersion) describes(b *bufinv.Buf) bool { return v != 0 && v == versionOf(b) }

// follow calls a function that changes how much of the buffer is data, for a request whose
// addresses do not depend on that. If the request has described the buffer, it still does.
func (v *bufferVersion) follow(b *bufinv.Buf, change func() error) error {
	known := v.describes(b)
	err := change()
	*v = 0
	if known && err == nil {
		*v = versionOf(b)
	}
	return err
}
