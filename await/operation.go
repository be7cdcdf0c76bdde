package await

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Send sends the data of src, a list, and waits until the peer's device has it. A nil src
// sends a message of no bytes.
//
// Send, SendImm, Read, Write, WriteImm, CompareSwap and FetchAdd may be called from any
// goroutine but the engine's (pe.ErrReentrant). They take their tasks from the shared pool of
// the connection's or peer's context, rdma.SharedTasks at a time; further calls wait, in
// order. They take over the caller's references to the buffers, in any case. The buffers must
// not be touched until the call has returned. If ctx ends while the device has the operation,
// the call returns a *Pending, and the buffers remain in use: see the package comment. Other
// errors are those of the task, of its allocation and of its submission; if a connection or a
// context has ended, they match the reason.
func Send[T Target](ctx context.Context, to T, src *bufinv.Buf) error {
	return operate(ctx, to, src, nil, func(p pool[T]) (*rdma.Task, error) { return p.Send(to, src) }, nil)
}

// SendImm is Send with 32 bits of immediate data.
func SendImm[T Target](ctx context.Context, to T, src *bufinv.Buf, imm uint32) error {
	return operate(ctx, to, src, nil, func(p pool[T]) (*rdma.Task, error) { return p.SendImm(to, src, imm) }, nil)
}

// Read reads the data of src, memory of the peer, into dst, a list, which is emptied first,
// and waits for it.
func Read[T Target](ctx context.Context, to T, src, dst *bufinv.Buf) error {
	return operate(ctx, to, dst, src, func(p pool[T]) (*rdma.Task, error) { return p.Read(to, src, dst) }, nil)
}

// Write writes the data of src, a list, to the room of dst, memory of the peer, and waits
// until the peer's device has it.
func Write[T Target](ctx context.Context, to T, src, dst *bufinv.Buf) error {
	return operate(ctx, to, src, dst, func(p pool[T]) (*rdma.Task, error) { return p.Write(to, src, dst) }, nil)
}

// WriteImm is Write with 32 bits of immediate data, which take a receive at the peer.
func WriteImm[T Target](ctx context.Context, to T, src, dst *bufinv.Buf, imm uint32) error {
	return operate(ctx, to, src, dst, func(p pool[T]) (*rdma.Task, error) { return p.WriteImm(to, src, dst, imm) }, nil)
}

// CompareSwap stores swap if compare is the value of dst, 8 bytes of the peer's memory at
// an address that is a multiple of 8, and returns the value that was there before.
func CompareSwap(ctx context.Context, conn *rdma.Connection, dst *bufinv.Buf, compare, swap uint64) (original uint64, err error) {
	err = operate(ctx, conn, nil, dst, func(p pool[*rdma.Connection]) (*rdma.Task, error) {
		return p.(*rdma.Pool).CompareSwap(conn, dst, compare, swap)
	}, &original)
	return original, err
}

// FetchAdd adds to the value of dst, which is as for CompareSwap, modulo 2^64, and returns the
// value before.
func FetchAdd(ctx context.Context, conn *rdma.Connection, dst *bufinv.Buf, add uint64) (original uint64, err error) {
	err = operate(ctx, conn, nil, dst, func(p pool[*rdma.Connection]) (*rdma.Task, error) { return p.(*rdma.Pool).FetchAdd(conn, dst, add) }, &original)
	return original, err
}

// operate runs one operation. The allocation may be tried several times, and takes references
// each time; the caller's references are held until the end.
func operate[T Target](ctx context.Context, to T, local, remote *bufinv.Buf,
	alloc func(pool[T]) (*rdma.Task, error), original *uint64,
) error {
	defer func() {
		_ = local.Free() // the error of the task says more
		_ = remote.Free()
	}()
	if to == nil {
		return fmt.Errorf("await: run a task: %w: no connection or peer is given", ErrInvalid)
	}
	c := contextOf(to)
	e := c.Engine()
	if e == nil {
		return fmt.Errorf("await: run a task of context %q: %w", c.Name(), pe.ErrNotConnected)
	}
	var collect func(*rdma.Task) error
	if original != nil {
		collect = func(t *rdma.Task) error {
			*original = t.Original()
			return nil
		}
	}
	return Task(ctx, e, func() (*rdma.Task, error) {
		p, err := sharedPool(to)
		if err != nil {
			return nil, err
		}
		if err := hold(local); err != nil {
			return nil, err
		}
		if err := hold(remote); err != nil {
			_ = local.Free()
			return nil, err
		}
		return alloc(p)
	}, collect)
}

// Target is where an operation goes: a connection, or a peer of a context of datagrams.
type Target interface {
	*rdma.Connection | *rdma.Peer
}

// pool is a pool of tasks for targets of type T.
type pool[T Target] interface {
	Send(to T, src *bufinv.Buf) (*rdma.Task, error)
	SendImm(to T, src *bufinv.Buf, imm uint32) (*rdma.Task, error)
	Read(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	Write(to T, src, dst *bufinv.Buf) (*rdma.Task, error)
	WriteImm(to T, src, dst *bufinv.Buf, imm uint32) (*rdma.Task, error)
}

func contextOf[T Target](to T) rdma.Context {
	if conn, ok := any(to).(*rdma.Connection); ok {
		return conn.Context()
	}
	return any(to).(*rdma.Peer).Context()
}

// sharedPool is the shared pool of the target's context.
func sharedPool[T Target](to T) (pool[T], error) {
	var p any
	var err error
	switch to := any(to).(type) {
	case *rdma.Connection:
		p, err = to.Context().SharedPool()
	case *rdma.Peer:
		p, err = to.Context().SharedPool()
	}
	if err != nil {
		return nil, err
	}
	return p.(pool[T]), nil
}

// hold takes a reference to a buffer, if there is one.
func hold(b *bufinv.Buf) error {
	if b == nil {
		return nil
	}
	return b.Ref()
}
