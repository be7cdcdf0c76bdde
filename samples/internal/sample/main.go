package sample

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
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/rdma"
)

// The exit codes. A signal gives 128 plus its number, as in a shell.
const (
	exitSuccess = 0
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128
)

var errTimeout = errors.New("time is up")

// Main runs a program and exits. It parses the flags, calls run, reports the outcome to the
// peer, and prints an error as one line.
//
// The context passed to run ends with -timeout, Ctrl-C or SIGTERM. A second signal ends the
// program at once.
func Main(p Program, run func(ctx context.Context, s *Session) error) {
	os.Exit(execute(p, run, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio is the standard files of a program.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

func execute(p Program, run func(ctx context.Context, s *Session) error, args []string, files stdio) int {
	var s *Session
	return Execute(p.Name, files.out, files.err, func(stdout *output.Writer) (err error) {
		files.out = stdout
		s, err = parse(p, args, files)
		return err
	}, func(ctx context.Context, stdout *output.Writer) error {
		if s.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, errTimeout)
			defer cancel()
		}
		err := errors.Join(run(ctx, s), stdout.Err()) // before the report, so that the peer gets this error too
		if s.Peer != nil {
			err = errors.Join(err, s.Peer.Close(err))
		}
		if s.clients != nil {
			err = errors.Join(err, s.clients.Close())
		}
		// Operations in flight when the context ended fail with its cause.
		switch {
		case err == nil:
		case errors.Is(context.Cause(ctx), errTimeout):
			return fmt.Errorf("gave up after %v (-timeout)%s", s.timeout, s.waitedFor())
		case errors.Is(err, rdma.ErrTimeout) && p.Role != Alone:
			return fmt.Errorf("gave up after %v (-connect-timeout) while waiting for %s %s: %w", s.ConnectTimeout, s.program.awaited(), s.program.Peer, err)
		}
		return err
	})
}

// Execute parses the flags of a program, runs it, prints an error as one line, and returns the exit
// code. parse returns flag.ErrHelp when it has printed all that was asked for. The context passed to run
// ends with Ctrl-C or SIGTERM; a second signal ends the program at once.
func Execute(name string, out, errs io.Writer, parse func(*output.Writer) error, run func(context.Context, *output.Writer) error) int {
	complain := func(err error) {
		_, _ = fmt.Fprintf(errs, "%s: %s\n", name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	}
	stdout := output.New(out)
	err := parse(stdout)
	if errors.Is(err, flag.ErrHelp) {
		if err = stdout.Err(); err == nil {
			return exitSuccess
		}
		complain(err)
		return exitFailure
	}
	if err != nil {
		complain(usage.Hint(err))
		return exitUsage
	}
	ctx, stop := interrupt.Context(context.Background())
	defer stop()
	err = run(ctx, stdout)
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
