package await

import (
	"context"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
)

// wait waits for a value that the engine's goroutine sends, and returns false if ctx ends before
// that. e may be nil.
func wait[T any](ctx context.Context, e *pe.Engine, c <-chan T) (T, bool) {
	var s host.Scheduler
	if e != nil {
		s = e.Friends(friend.Package{}).Scheduler()
	}
	return host.Await(ctx, s, nil, c)
}
