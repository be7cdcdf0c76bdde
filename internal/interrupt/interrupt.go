// Package interrupt ends a context by a signal, so that the program can report which signal it
// was.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Error is the cause of a context that was ended by a signal.
type Error struct{ Signal syscall.Signal }

// Error names the signal.
func (e Error) Error() string { return "interrupted by signal: " + e.Signal.String() }

// Context returns a context that ends with the first SIGINT or SIGTERM. The second one kills
// the program. stop ends the context, and restores the usual effect of the signals.
func Context(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(signals)
		select {
		case s := <-signals:
			signal.Stop(signals) // before the program shows that it ends: it may be interrupted again at once
			number, _ := s.(syscall.Signal)
			cancel(Error{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
