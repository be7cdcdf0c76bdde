package pe

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
)

// attachment is what another package of this module keeps with an engine or a context.
type attachment struct {
	once  sync.Once
	value any
}

// forFriends has the methods that other packages of this module use.
type forFriends struct{ *Engine }

// Friends returns the methods for packages of this module.
func (e *Engine) Friends(friend.Package) forFriends { return forFriends{e} }

// Scheduler is that of the host of the engine's devices; nil: they are not simulated. It may be
// called from any goroutine.
func (s forFriends) Scheduler() host.Scheduler {
	if t := s.turns.Load(); t != nil {
		return t
	}
	return nil
}

// Attachment returns the result of the first call of create for this engine. Only package await
// uses it. It may be called from any goroutine.
func (s forFriends) Attachment(create func() any) any { return s.attached.get(create) }

func (a *attachment) get(create func() any) any {
	a.once.Do(func() { a.value = create() })
	return a.value
}

// coreForFriends has the methods of a context that other packages of this module use.
type coreForFriends struct{ *Core }

// Friends returns the methods for packages of this module.
func (c *Core) Friends(friend.Package) coreForFriends { return coreForFriends{c} }

// Attachment is that of engines, for this context.
func (s coreForFriends) Attachment(create func() any) any { return s.attached.get(create) }
