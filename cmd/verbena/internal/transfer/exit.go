package transfer

import (
	"context"
	"errors"
	"flag"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	"github.com/verbena-rdma/verbena/internal/interrupt"
)

// The exit codes, which docs/send.md explains. A signal gives 128 plus its number.
const (
	exitOK         = 0
	exitFailure    = 1 // anything else
	exitUsage      = 2 // wrong command line
	exitConnection = 3 // no connection, or it was lost and could not be made again
	exitSecret     = 4 // one end has not proved that it knows the secret
	exitPartial    = 5 // some entries did not arrive
	exitIntegrity  = 6 // the data was damaged, or the peer violated the protocol
	exitSpace      = 7 // the receiver's disk is full
	exitSignal     = 128
)

// exitError is an error with an exit code. printed means that the error has been printed.
type exitError struct {
	code    int
	printed bool
	err     error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error { return &exitError{code: exitUsage, err: err} }

// codeOf returns the exit code for the error of a command.
func codeOf(ctx context.Context, err error) int {
	var by interrupt.Error
	var exit *exitError
	var fault *session.Fault
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(context.Cause(ctx), &by):
		return exitSignal + int(by.Signal)
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &fault):
		switch fault.Code {
		case proto.NeedSecret, proto.WrongSecret:
			return exitSecret
		case proto.BadData, proto.BadProtocol, proto.WrongVersion:
			return exitIntegrity
		case proto.NoSpace:
			return exitSpace
		case proto.Stopped, proto.TooMany:
			return exitConnection
		}
	case errors.Is(err, link.ErrBroken):
		return exitConnection
	case tree.CodeOf(err) == proto.NoSpace:
		return exitSpace
	}
	return exitFailure
}

// partial returns the error for a transfer in which some entries failed, or nil.
func partial(sum session.Summary) error {
	code := exitPartial
	if sum.Failed == 0 {
		return nil
	}
	if sum.NoSpace {
		code = exitSpace
	}
	return &exitError{code: code, printed: true, err: errors.New("some entries did not arrive")}
}
