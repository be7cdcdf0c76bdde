package pe

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/sibling"
)

// attachment is what another package of this module keeps with an engine or a context.
type attachment struct {
	once  sync.Once
	value any
}

// siblings has the methods that other packages of this module use.
type siblings struct{ *Engine }

// Siblings returns the methods for packages of this module.
func (e *Engine) Siblings(sibling.Pass) siblings { return siblings{e} }

// Scheduler is that of the host of the engine's devices; nil: they are not simulated. It may be
// called from any goroutine.
func (s siblings) Scheduler() host.Scheduler {
	if t := s.turns.Load(); t != nil {
		return t
	}
	return nil
}

// Attachment returns the result of the first call of create for this engine. Only package await
// uses it. It may be called from any goroutine.
func (s siblings) Attachment(create func() any) any { return s.attached.get(create) }

func (a *attachment) get(create func() any) any {
	a.once.Do(func() { a.value = create() })
	return a.value
}

// coreSiblings has the methods of a context that other packages of this module use.
type coreSiblings struct{ *Core }

// Siblings returns the methods for packages of this module.
func (c *Core) Siblings(sibling.Pass) coreSiblings { return coreSiblings{c} }

// Attachment is that of engines, for this context.
func (s coreSiblings) Attachment(create func() any) any { return s.attached.get(create) }
