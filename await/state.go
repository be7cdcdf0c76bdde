package await

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// State waits until a context is in a state or the change to that state is reported,
// whichever is first. In the second case the program's own function for changes of
// state (OnStateChange) has run for it.
//
// A wait for Running or Starting fails with ErrStopped, joined with the context's Err,
// when the context goes back to Idle. If ctx ends, the error matches its cause.
// Without an engine it fails with pe.ErrNotConnected. State may be called from any
// goroutine but the engine's (pe.ErrReentrant).
func State(ctx context.Context, c pe.Context, want pe.State) error {
	return watch(ctx, c, want, fmt.Sprintf("wait for %v", want), func(pe.Context) error { return nil })
}

// Start starts a context, and waits until it is Running, as State does. Its errors are
// those of pe.Core.Start and State. If ctx ends first, the context goes on starting.
func Start(ctx context.Context, c pe.Context) error {
	return watch(ctx, c, pe.Running, "start", pe.Context.Start)
}

// Stop stops a context, and waits until it is Idle: until all of its tasks have
// come back and been freed. If ctx ends first, the context goes on stopping.
func Stop(ctx context.Context, c pe.Context) error {
	return watch(ctx, c, pe.Idle, "stop", pe.Context.Stop)
}

// watch runs begin on the engine's goroutine and waits for the state.
func watch(ctx context.Context, c pe.Context, want pe.State, op string, begin func(pe.Context) error) error {
	if c == nil {
		return fmt.Errorf("await: %s: %w: no context is given", op, ErrInvalid)
	}
	op = fmt.Sprintf("%s of context %q", op, c.Name())
	e := c.Engine()
	if e == nil {
		return fmt.Errorf("await: %s: %w; connect it with Engine.Connect", op, pe.ErrNotConnected)
	}
	w := &watcher{c: c, want: want, op: op, done: make(chan error, 1)}
	err := Func(ctx, e, func() error {
		if err := begin(c); err != nil {
			return fmt.Errorf("await: %s: %w", op, err)
		}
		w.begin()
		return nil
	})
	if err != nil {
		return err
	}
	err, ok := wait(ctx, e, w.done)
	if !ok {
		_ = e.Do(w.end) // a closed engine reports no states
		return ended(ctx, op)
	}
	return err
}

// watcher waits for a state, on the engine's goroutine.
type watcher struct {
	c    pe.Context
	want pe.State
	op   string
	stop func()
	done chan error // holds one
}

func (w *watcher) begin() {
	if w.c.State() == w.want {
		w.done <- nil
		return
	}
	w.stop = w.c.Watch(w.stateChanged)
}

func (w *watcher) stateChanged(_, next pe.State) {
	switch {
	case next == w.want:
		w.finish(nil)
	case next == pe.Idle && w.c.State() == pe.Idle: // else it has been started again
		w.finish(fmt.Errorf("await: %s: %w", w.op, errors.Join(ErrStopped, w.c.Err())))
	}
}

func (w *watcher) finish(err error) {
	w.end()
	w.done <- err
}

// end stops watching.
func (w *watcher) end() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}
