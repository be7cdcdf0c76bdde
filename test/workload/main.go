// Command workload is one end of a pair of programs that carry out an operation in any shape:
// of any size, from lists of buffers, in several tasks, over several connections, at any path
// MTU, with time-outs. The tests of the matrix (docs/interop.md) run it, and many others; the
// samples show one operation each.
//
//	workload -op write -as responder -size 16777216 -mtu 512 &
//	workload -op write -as requester -size 16777216 -mtu 512 -sge 3
//
// Both ends get the same -op, -size and -nc. The data of each connection is a pattern that
// both know: the end that receives the data checks every byte. Both print its length and its
// checksum, so that a third program can compare them.
//
// Exit codes: 0 success, 1 failure, 2 wrong usage. A failure is one line on standard error,
// after the log.
package main

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

	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/rdma"
)

var errTimeout = errors.New("time is up")

func main() {
	s, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		complain(os.Stderr, usage.Hint(err))
		os.Exit(2)
	}
	if err := run(s, os.Stdout); err != nil {
		complain(os.Stderr, err)
		os.Exit(1)
	}
}

// complain prints an error as one line.
func complain(w io.Writer, err error) {
	_, _ = fmt.Fprintf(w, "workload: %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}

// run runs one end until it is done, fails or is interrupted.
func run(s settings, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, errTimeout)
		defer cancel()
	}
	p, err := newPeer(s)
	if err != nil {
		return err
	}
	e := &end{settings: s, peer: p, out: out}
	err = e.run(ctx)
	err = errors.Join(err, p.Close(err))
	switch {
	case err == nil:
		return nil
	// Operations in flight when the context ended fail with its cause.
	case errors.Is(context.Cause(ctx), errTimeout):
		return fmt.Errorf("gave up after %v (-timeout) while waiting for %s", s.timeout, e.waiting)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted while waiting for %s", e.waiting)
	case errors.Is(err, rdma.ErrTimeout):
		return fmt.Errorf("gave up after %v (-connect-timeout) while waiting for the connection to the other end: %w", s.connectTimeout, err)
	}
	return err
}
