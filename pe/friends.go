package pe

import (
	"fmt"
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

// MayBlock fails with ErrReentrant in a callback of the engine, which would wait for itself. It is for
// calls that wait for the engine and that any goroutine may make. A callback of another engine may
// wait for this one; its own engine stands still meanwhile. op names the operation in the error.
func (s forFriends) MayBlock(op string) error {
	if s.drivenHere() {
		return fmt.Errorf("pe: cannot %s: %w; the engine would wait for itself: use another goroutine, or callbacks", op, ErrReentrant)
	}
	return nil
}

// Draining reports whether Close, or a Run whose context has ended, is stopping all contexts: a
// context that goes to Stopping now may have been cut short. It belongs to the goroutine that drives
// the engine.
func (s forFriends) Draining() bool { return s.draining }

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

// Init makes the core a context that does its work in b.
func (s coreForFriends) Init(name string, b backend) {
	s.name, s.backend = name, b
	s.sleeping, _ = b.(sleepingBackend)
}

// Attachment is that of engines, for this context.
func (s coreForFriends) Attachment(create func() any) any { return s.attached.get(create) }
