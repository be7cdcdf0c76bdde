// Package neterr gives errors of package rdma the kinds that errors of package net have.
package neterr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Error is an error of a kind, with its reason. It matches both.
type Error struct {
	Kind   error // such as syscall.ECONNRESET
	Reason error // nil: there is no more to say
}

// Error is the text of both.
func (e *Error) Error() string {
	if e.Reason == nil {
		return e.Kind.Error()
	}
	return fmt.Sprintf("%v: %v", e.Kind, e.Reason)
}

// Unwrap returns both.
func (e *Error) Unwrap() []error {
	if e.Reason == nil {
		return []error{e.Kind} // package errors allows no nil
	}
	return []error{e.Kind, e.Reason}
}

// Timeout makes that of net.OpError right.
func (e *Error) Timeout() bool {
	t, ok := e.Kind.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// Reset is the error of a connection that has failed.
func Reset(reason error) error { return &Error{syscall.ECONNRESET, reason} }

// Of returns the error of an attempt to connect or to listen with its kind. ctx is that of the
// attempt.
func Of(ctx context.Context, err error) error {
	kinds := []struct{ is, kind error }{
		{rdma.ErrNotListening, syscall.ECONNREFUSED},
		{rdma.ErrRejected, syscall.ECONNREFUSED},
		{rdma.ErrNoRoute, syscall.ENETUNREACH},
		{rdma.ErrUnreachable, syscall.EHOSTUNREACH},
		{rdma.ErrTimeout, syscall.ETIMEDOUT},
		{verbs.ErrInUse, syscall.EADDRINUSE},
	}
	if ctx.Err() != nil {
		kinds = []struct{ is, kind error }{{context.DeadlineExceeded, os.ErrDeadlineExceeded}}
	} else if e, ok := errors.AsType[*verbs.CMError](err); ok {
		err = e // the rest repeats the address
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return &Error{k.kind, err}
		}
	}
	return err
}
