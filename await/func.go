package await

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/pe"
)

// Func has f run on the engine's goroutine, where everything of the engine may be
// used, waits until it has returned, and returns its error. f may use the caller's
// variables; it should not block. If it panics, so does whoever drives the engine,
// and Func's error matches ErrPanicked.
//
// If ctx ends before f is begun, f is never run, and the error matches ctx's cause;
// f is not interrupted. Otherwise Func is like Task.
func Func(ctx context.Context, e *pe.Engine, f func() error) error {
	if e == nil || f == nil {
		return fmt.Errorf("await: run a function: %w: it needs an engine and the function", ErrInvalid)
	}
	if err := e.MayBlock("wait for a function"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ended(ctx, "run a function")
	}
	var begun atomic.Bool
	done := make(chan struct{})
	result := errPanicked
	err := e.Do(func() {
		if begun.CompareAndSwap(false, true) {
			defer close(done)
			result = f()
		}
	})
	if err != nil {
		return fmt.Errorf("await: run a function: %w", err)
	}
	select {
	case <-done:
	case <-ctx.Done():
		if begun.CompareAndSwap(false, true) {
			return ended(ctx, "run a function")
		}
		<-done
	}
	return result
}
