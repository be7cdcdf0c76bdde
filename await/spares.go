package await

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// spares has calls that are over, with their channels and functions, to be used again: otherwise
// all of that would be garbage after each call. Each engine has its own, since a channel must not
// leave the bubble of a test (testing/synctest) in which it was made.
type spares struct{ functions, operations sync.Pool }

func newSpares() any {
	return &spares{functions: sync.Pool{New: newFunction}, operations: sync.Pool{New: newOperation}}
}

func sparesOf(e *pe.Engine) *spares {
	return e.Friends(friend.Package{}).Attachment(newSpares).(*spares)
}
