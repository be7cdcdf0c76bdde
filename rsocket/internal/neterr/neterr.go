// Package neterr gives errors of package rdma the kinds that errors of package net have.
package neterr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	reason := e.Reason.Error()
	if cm, ok := e.Reason.(*verbs.CMError); ok { // net.OpError has the addresses
		if reason = cm.Err.Error(); cm.Err == verbs.ErrRejected {
			reason = cm.Reason.String()
		}
	}
	if e.Reason == context.DeadlineExceeded {
		return e.Kind.Error()
	}
	reason = strings.TrimSuffix(reason, ": "+verbs.ErrInUse.Error()) // the kind says so
	if e.Kind == e.Reason || strings.HasSuffix(reason, e.Kind.Error()) {
		return reason
	}
	return fmt.Sprintf("%v: %v", e.Kind, reason)
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

// OfDial returns the error of an attempt to connect with its kind. ctx is that of the attempt.
func OfDial(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		for e := err; e != nil; e = errors.Unwrap(e) {
			switch e {
			case context.DeadlineExceeded:
				return &Error{os.ErrDeadlineExceeded, e}
			case context.Canceled:
				return e
			}
		}
		return of(err, []kind{{context.DeadlineExceeded, os.ErrDeadlineExceeded}})
	}
	return of(err, []kind{
		{rdma.ErrNotListening, syscall.ECONNREFUSED},
		{rdma.ErrRejected, syscall.ECONNREFUSED},
		{syscall.EHOSTUNREACH, syscall.EHOSTUNREACH}, // a route says so, or the network
		{syscall.ENETUNREACH, syscall.ENETUNREACH},
		{syscall.EACCES, syscall.EACCES},
		{rdma.ErrNoRoute, syscall.ENETUNREACH},
		{rdma.ErrUnreachable, syscall.ETIMEDOUT},
		{rdma.ErrTimeout, syscall.ETIMEDOUT},
		{rdma.ErrInvalid, syscall.ENETUNREACH}, // a broadcast address, or a multicast group
	})
}

// OfListen returns the error of an attempt to listen with its kind.
func OfListen(err error) error {
	return of(err, []kind{
		{verbs.ErrInUse, syscall.EADDRINUSE},
		{rdma.ErrInvalid, syscall.EADDRNOTAVAIL}, // not an address of the device
		{rdma.ErrNoRoute, syscall.EADDRNOTAVAIL},
	})
}

// kind is the kind of the errors that match another.
type kind struct{ is, kind error }

func of(err error, kinds []kind) error {
	if e, ok := errors.AsType[*verbs.CMError](err); ok {
		err = e // the rest repeats the address
	} else {
		err = Innermost(err)
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return &Error{k.kind, err}
		}
	}
	return err
}

// Innermost leaves out what the callers between have added to an error: which attempt of what it was.
// net.OpError says that. It stops where an error joins several, or adds to one that adds nothing.
func Innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil || errors.Unwrap(inner) == nil && !hasSeveral(inner) {
			return err
		}
		err = inner
	}
}

// hasSeveral reports whether an error wraps several.
func hasSeveral(err error) bool {
	_, ok := err.(interface{ Unwrap() []error })
	return ok
}
