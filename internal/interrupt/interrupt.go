// Package interrupt ends a program by signals, so that it can say which one it was.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Error is the cause of a context that a signal has ended.
type Error struct{ Signal syscall.Signal }

// Error names the signal.
func (e Error) Error() string { return "interrupted by signal: " + e.Signal.String() }

// Context returns a context that ends with the first signal to stop, SIGINT or SIGTERM. The
// second one kills. stop ends the context, and gives signals their usual effect.
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
