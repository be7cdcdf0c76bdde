package await

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// Errors of this package, matched with errors.Is. A wait that a context.Context
// ended matches the cause of that (context.Cause); errors of tasks, pools and the
// engine come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrPending: the operation has not completed yet.
	ErrPending = errs.ErrPending
	// ErrPanicked: a function of the caller's did not return.
	ErrPanicked = errs.ErrPanicked
	// ErrStopped: the context stopped before it reached the awaited state.
	ErrStopped = errors.New("context has stopped")
	// ErrBusy: an iteration over the messages of the Receiver is under way.
	ErrBusy = errs.ErrBusy
	// ErrClosed: the Receiver has been closed.
	ErrClosed = errs.ErrClosed
)

// errPanicked is the outcome of a function until it has returned.
var errPanicked = fmt.Errorf("await: %w, or ended its goroutine", ErrPanicked)

// ended is the error of a wait that ctx ended. If the device still has a task, the error is a
// *Pending instead.
func ended(ctx context.Context, op string) error {
	return fmt.Errorf("await: %s: %w", op, context.Cause(ctx))
}

// Pending is a task that nobody waits for: the result of Post, and the error of Task when its wait
// ended while the device had the task. The task goes on: it may still read its source and write its
// destination, here or at the peer. Until it has completed, its buffers are in use: nothing hands
// them out again, and their memory maps cannot be closed. Then the task is freed, with its buffers.
// Its results are not collected.
type Pending struct {
	engine *pe.Engine
	cause  error // why the wait ended; nil: Post does not wait
	done   chan struct{}
	err    error // written before done is closed
}

// Error says that the task goes on and, if a wait for it ended, why.
func (p *Pending) Error() string {
	if p.cause == nil {
		return "await: a posted task is under way"
	}
	return fmt.Sprintf("await: wait for a task: %v; the task continues, and uses its memory until Pending.Done is closed", p.cause)
}

// Unwrap returns why the wait ended; nil: the task was posted.
func (p *Pending) Unwrap() error { return p.cause }

// Done is closed when the task has completed and been freed.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Err is how the operation ended: nil if it succeeded. Before Done is closed it is
// ErrPending.
func (p *Pending) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return ErrPending
	}
}

// Wait waits until the task has completed and been freed, and returns Err; or until
// ctx ends, and then returns an error that matches ErrPending and ctx's cause. It is
// for any goroutine but the engine's (pe.ErrReentrant).
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	if err := p.engine.Friends(friend.Package{}).MayBlock("wait for a task"); err != nil {
		return err
	}
	if _, ok := wait(ctx, p.engine, p.done); !ok {
		return fmt.Errorf("await: %w: %w", ErrPending, context.Cause(ctx))
	}
	return p.err
}
