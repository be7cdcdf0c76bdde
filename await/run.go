package await

import (
	"context"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Run drives an engine until ctx ends, even while every context is Idle. It is for programs
// that start contexts from other goroutines. Callbacks run on its goroutine. When ctx ends,
// all contexts are stopped, and Run returns what pe.Engine.Run returns then: the cause of
// ctx's end, joined with the errors of contexts. Its other errors are those of
// pe.Engine.Connect and pe.Engine.Run, and ErrInvalid without an engine.
func Run(ctx context.Context, e *pe.Engine) (err error) {
	if e == nil {
		return fmt.Errorf("await: run: %w: no engine is given", ErrInvalid)
	}
	k := &keepAlive{}
	k.Core, k.control = backend.New("await.Run", (*keepAliveBackend)(k))
	if err := e.Connect(k); err != nil {
		return err
	}
	defer func() {
		_ = k.Stop() // needed after a panic of a callback
		if closing := k.Close(); err == nil {
			err = closing
		}
	}()
	if err := k.Start(); err != nil {
		return err
	}
	return e.Run(ctx)
}

// keepAlive is a context that is Running and has nothing to do. It keeps the engine's
// Run from returning.
type keepAlive struct {
	*pe.Core
	control backend.Control
}

type keepAliveBackend keepAlive

func (b *keepAliveBackend) Start() (bool, error) { return true, nil }
func (b *keepAliveBackend) Progress() int        { return 0 }
func (b *keepAliveBackend) Arm() bool            { return true }
func (b *keepAliveBackend) Stop()                { b.control.Stopped() }
func (b *keepAliveBackend) Idle()                {}
