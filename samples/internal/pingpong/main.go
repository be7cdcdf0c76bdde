package pingpong

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/output"
)

// The exit codes.
const (
	exitSuccess = 0
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // and the number of the signal
)

// Main runs a program and exits. The context passed to run ends with Ctrl-C or SIGTERM; a
// second signal ends the program at once.
func Main(p Program, run func(ctx context.Context, o *Options) error) {
	os.Exit(execute(p, run, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(p Program, run func(ctx context.Context, o *Options) error, args []string, out, errs io.Writer) int {
	complain := func(err error) {
		_, _ = fmt.Fprintf(errs, "%s: %s\n", p.Name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	stdout := output.New(out)
	o, err := parse(p, args, stdout, errs)
	if errors.Is(err, flag.ErrHelp) {
		if err = stdout.Err(); err == nil {
			return exitSuccess
		}
		complain(err)
		return exitFailure
	}
	if err != nil {
		complain(fmt.Errorf("%w; -h lists the flags", err))
		return exitUsage
	}
	ctx, stop := interrupt.Context(context.Background())
	defer stop()
	err = errors.Join(run(ctx, o), stdout.Err())
	var by interrupt.Error
	switch {
	case err == nil:
		return exitSuccess
	case errors.As(context.Cause(ctx), &by):
		complain(by)
		return exitSignal + int(by.Signal)
	}
	complain(err)
	return exitFailure
}

// Close calls closer and joins its error into *err, for use with defer.
func Close(err *error, closer func() error) { *err = errors.Join(*err, closer()) }

// say prints a line for the user on standard error, separate from the results.
func (o *Options) say(format string, args ...any) {
	_, _ = fmt.Fprintf(o.err, o.program.Name+": "+format+"\n", args...)
}
