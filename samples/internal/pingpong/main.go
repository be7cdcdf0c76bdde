package pingpong

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The exit codes.
const (
	exitSuccess     = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// Main runs a program and exits. The context given to run ends with Ctrl-C or
// SIGTERM; a second signal ends the program at once.
func Main(p Program, run func(ctx context.Context, o *Options) error) {
	os.Exit(execute(p, run, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(p Program, run func(ctx context.Context, o *Options) error, args []string, out, errs io.Writer) int {
	complain := func(err error) {
		_, _ = fmt.Fprintf(errs, "%s: %s\n", p.Name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	o, err := parse(p, args, out, errs)
	if errors.Is(err, flag.ErrHelp) {
		return exitSuccess
	}
	if err != nil {
		complain(fmt.Errorf("%w; -h lists the flags", err))
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // the next signal kills
	err = run(ctx, o)
	switch {
	case err == nil:
		return exitSuccess
	case ctx.Err() != nil:
		complain(errors.New("interrupted"))
		return exitInterrupted
	}
	complain(err)
	return exitFailure
}

// Close calls closer and joins its error into *err, for use with defer.
func Close(err *error, closer func() error) { *err = errors.Join(*err, closer()) }

// say prints a line for the user, beside the results.
func (o *Options) say(format string, args ...any) {
	_, _ = fmt.Fprintf(o.err, o.program.Name+": "+format+"\n", args...)
}
