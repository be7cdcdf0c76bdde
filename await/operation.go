package await

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Send sends the data of src, a list, and waits until the peer's device has it. A nil src
// sends a message of no bytes.
//
// Send, SendImm, Read, Write, WriteImm, AtomicWrite, CompareSwap and FetchAdd may be called from any
// goroutine but the engine's (pe.ErrReentrant). They take their tasks from a pool of this
// package in the connection's or peer's context, 64 at a time; further calls wait, in order.
// They take over the caller's references to the buffers, in any case. The buffers must
// not be touched until the call has returned. If ctx ends while the device has the operation,
// the call returns a *Pending, and the buffers remain in use: see the package comment. Other
// errors are those of the task, of its allocation and of its submission; if a connection or a
// context has ended, they match the reason.
func Send[T Remote](ctx context.Context, to T, src *bufinv.Buf) error {
	_, err := operate(ctx, to, operands{op: rdma.OpSend, local: src})
	return err
}

// SendImm is Send with 32 bits of immediate data.
func SendImm[T Remote](ctx context.Context, to T, src *bufinv.Buf, imm uint32) error {
	_, err := operate(ctx, to, operands{op: rdma.OpSendImm, local: src, imm: imm})
	return err
}

// Read reads the data of src, memory of the peer, into dst, a list, which is emptied first,
// and waits for it.
func Read[T Remote](ctx context.Context, to T, src, dst *bufinv.Buf) error {
	_, err := operate(ctx, to, operands{op: rdma.OpRead, local: dst, remote: src})
	return err
}

// Write writes the data of src, a list, to the room of dst, memory of the peer, and waits
// until the peer's device has it.
func Write[T Remote](ctx context.Context, to T, src, dst *bufinv.Buf) error {
	_, err := operate(ctx, to, operands{op: rdma.OpWrite, local: src, remote: dst})
	return err
}

// WriteImm is Write with 32 bits of immediate data, which take a receive at the peer.
func WriteImm[T Remote](ctx context.Context, to T, src, dst *bufinv.Buf, imm uint32) error {
	_, err := operate(ctx, to, operands{op: rdma.OpWriteImm, local: src, remote: dst, imm: imm})
	return err
}

// AtomicWrite writes the data of src, 8 bytes, to dst, 8 bytes of the peer's memory at an
// address that is a multiple of 8, in one store, and waits until the memory holds them.
func AtomicWrite(ctx context.Context, conn *rdma.Connection, src, dst *bufinv.Buf) error {
	_, err := operate(ctx, conn, operands{op: rdma.OpAtomicWrite, local: src, remote: dst})
	return err
}

// CompareSwap stores swap if compare is the value of dst, 8 bytes of the peer's memory at
// an address that is a multiple of 8, and returns the value that was there before.
func CompareSwap(ctx context.Context, conn *rdma.Connection, dst *bufinv.Buf, compare, swap uint64) (original uint64, err error) {
	return operate(ctx, conn, operands{op: rdma.OpCompareSwap, remote: dst, compare: compare, value: swap})
}

// FetchAdd adds to the value of dst, which is as for CompareSwap, modulo 2^64, and returns the
// value before.
func FetchAdd(ctx context.Context, conn *rdma.Connection, dst *bufinv.Buf, add uint64) (original uint64, err error) {
	return operate(ctx, conn, operands{op: rdma.OpFetchAdd, remote: dst, value: add})
}

// operands is what an operation works on.
type operands struct {
	op             rdma.Operation
	local, remote  *bufinv.Buf
	imm            uint32
	compare, value uint64
}

// operation is a call that runs one operation, and is used again.
type operation struct {
	call[*rdma.Task]
	operands
	conn     *rdma.Connection // exactly one of conn and peer is set
	peer     *rdma.Peer
	original uint64 // of an atomic that has succeeded
}

func newOperation() any {
	o := &operation{}
	o.init(o.allocate, o.takeOriginal)
	return o
}

// operate runs one operation, and returns the original value of an atomic.
func operate[T Remote](ctx context.Context, to T, with operands) (original uint64, err error) {
	defer func() {
		_ = with.local.Free() // the error of the task says more
		_ = with.remote.Free()
	}()
	if to == nil {
		return 0, fmt.Errorf("await: run a task: %w: no connection or peer is given", ErrInvalid)
	}
	c := contextOf(to)
	e := c.Engine()
	if e == nil {
		return 0, fmt.Errorf("await: run a task of context %q: %w", c.Name(), pe.ErrNotConnected)
	}
	if err := mayWait(ctx, e); err != nil {
		return 0, err
	}
	operations := &sparesOf(e).operations
	o := operations.Get().(*operation)
	o.operands, o.original = with, 0
	o.conn, _ = any(to).(*rdma.Connection)
	o.peer, _ = any(to).(*rdma.Peer)
	err, over := o.run(ctx, e)
	if !over {
		return 0, err
	}
	original = o.original
	o.ctx, o.operands, o.conn, o.peer, o.pending = nil, operands{}, nil, nil, Pending{}
	operations.Put(o)
	return original, err
}

// allocate may be called several times for one operation. It takes references to the buffers each
// time; the caller's references are held until the end.
func (o *operation) allocate() (*rdma.Task, error) {
	if o.conn != nil {
		c := o.conn.Context()
		p, err := poolOf[rdma.Pool](c.Friends(friend.Package{}).Attachment(newContextPool[rdma.Pool]), c.Pool)
		if err != nil {
			return nil, err
		}
		if err := o.hold(); err != nil {
			return nil, err
		}
		switch o.op {
		case rdma.OpAtomicWrite:
			return p.AtomicWrite(o.conn, o.local, o.remote)
		case rdma.OpCompareSwap:
			return p.CompareSwap(o.conn, o.remote, o.compare, o.value)
		case rdma.OpFetchAdd:
			return p.FetchAdd(o.conn, o.remote, o.value)
		}
		return allocate(p, o.conn, &o.operands)
	}
	c := o.peer.Context()
	p, err := poolOf[rdma.DatagramPool](c.Friends(friend.Package{}).Attachment(newContextPool[rdma.DatagramPool]), c.Pool)
	if err != nil {
		return nil, err
	}
	if err := o.hold(); err != nil {
		return nil, err
	}
	return allocate(p, o.peer, &o.operands)
}

// poolTasks is how many operations of one context run at a time.
const poolTasks = 64

// contextPool is the pool that operations of one context use. It belongs to the engine's
// goroutine.
type contextPool[P any] struct{ pool *P }

// newContextPool makes what a context keeps for this package. It is named where P is known: as a
// function literal in poolOf, which is generic, it would be allocated for each operation.
func newContextPool[P any]() any { return &contextPool[P]{} }

// poolOf returns the pool of a context, and makes it on the first call. attached is what the context
// keeps for this package, and create makes a pool of it.
func poolOf[P any](attached any, create func(int, func(*rdma.Task), func(*rdma.Task, error)) (*P, error)) (p *P, err error) {
	c := attached.(*contextPool[P])
	if c.pool == nil {
		c.pool, err = create(poolTasks, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
	}
	return c.pool, err
}

// allocate allocates a task of an operation that connections and peers have.
func allocate[T Remote](p pool[T], to T, with *operands) (*rdma.Task, error) {
	switch with.op {
	case rdma.OpSend:
		return p.Send(to, with.local)
	case rdma.OpSendImm:
		return p.SendImm(to, with.local, with.imm)
	case rdma.OpRead:
		return p.Read(to, with.remote, with.local)
	case rdma.OpWriteImm:
		return p.WriteImm(to, with.local, with.remote, with.imm)
	default:
		return p.Write(to, with.local, with.remote)
	}
}

// takeOriginal takes the result of an atomic; other tasks have the value 0.
func (o *operation) takeOriginal(t *rdma.Task) error {
	o.original = t.Original()
	return nil
}

// hold takes references to the buffers, for a task.
func (o *operation) hold() error {
	if err := hold(o.local); err != nil {
		return err
	}
	err := hold(o.remote)
	if err != nil {
		_ = o.local.Free()
	}
	return err
}

// Remote is the other end of an operation: a connection, or a peer of a context of datagrams.
type Remote interface {
	*rdma.Connection | *rdma.Peer
}

// pool is a pool of tasks for targets of type T.
type pool[T Remote] interface {
	Send(to T, src *bufinv.Buf) (*rdma.Task, error)
	SendImm(to T, src *bufinv.Buf, imm uint32) (*rdma.Task, error)
	Read(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	Write(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	WriteImm(to T, src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}

func contextOf[T Remote](to T) rdma.Context {
	if conn, ok := any(to).(*rdma.Connection); ok {
		return conn.Context()
	}
	return any(to).(*rdma.Peer).Context()
}

// hold takes a reference to a buffer, if there is one.
func hold(b *bufinv.Buf) error {
	if b == nil {
		return nil
	}
	return b.Ref()
}
