package await

import (
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/sibling"
	"github.com/verbena-rdma/verbena/pe"
)

// nextTurn is for a goroutine that waits for the engine, or for the end of a context.Context.
// When the latter has ended the wait, the goroutine takes the turn: in a simulation, others may
// have been woken with it.
func nextTurn(e *pe.Engine) host.Turn {
	if e == nil {
		return host.Turn{}
	}
	return e.Siblings(sibling.Pass{}).NextTurn()
}
