// Package exit has the exit codes that the commands of verbena share.
package exit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/usage"
)

// Exit codes. A signal gives 128 plus its number.
const (
	OK     = 0
	Failed = 1 // the command could not do what it was asked to
	Usage  = 2 // wrong command line

	signal = 128
)

// WrongArguments returns the exit code for an error in the arguments of a command, which it prints.
// After flag.ErrHelp, that is OK.
func WrongArguments(command string, err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return OK
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", command, usage.Hint(err))
	return Usage
}

// Code returns the exit code of a command that has ended with err, which may be nil, and prints the
// error. If a signal ended the context, the code says which, and nothing is printed.
func Code(ctx context.Context, command string, err error, stderr io.Writer) int {
	var by interrupt.Error
	switch {
	case errors.As(context.Cause(ctx), &by):
		return signal + int(by.Signal)
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", command, err)
		return Failed
	}
	return OK
}
