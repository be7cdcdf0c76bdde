// Command verbena is the tool of the SDK:
//
//	verbena ping HOST                 does RDMA work between here and there and, if not, why
//	verbena receive DIR               takes files, directories and messages into a folder
//	verbena send FILE... HOST:PORT    sends them there, by RDMA writes
//	verbena send -m TEXT HOST:PORT    sends a message
//
// verbena COMMAND -help shows a command's flags.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/ping"
	"github.com/verbena-rdma/verbena/internal/version"
)

// command is a subcommand. run returns the exit code.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

var commands = []command{
	{"ping", "does RDMA work between here and there and, if not, why", ping.Main},
	{"send", "send files, directories or a message", invoke("send", "[flags] FILE... HOST:PORT | -m TEXT HOST:PORT", "send files, directories or a message", send)},
	{"receive", "take files, directories and messages into a folder", invoke("receive", "[flags] DIR", "take files, directories and messages into a folder", receive)},
}

// invocation is one run of a command.
type invocation struct {
	name, usage, about string
	args               []string
	out, err           io.Writer
}

func invoke(name, usage, about string, run func(context.Context, *invocation) error) func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return codeOf(ctx, run(ctx, &invocation{name, usage, about, args, stdout, stderr}))
	}
}

func main() {
	ctx, stop := interruptible(context.Background())
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		overview(stderr)
		return exitUsage
	}
	switch args[0] {
	case "version", "-version", "--version":
		_, _ = fmt.Fprintln(stdout, "verbena", version.String())
		return 0
	case "help", "-help", "--help", "-h":
		overview(stdout)
		return 0
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	_, _ = fmt.Fprintf(stderr, "verbena: there is no command %q\n", args[0])
	overview(stderr)
	return exitUsage
}

func overview(w io.Writer) {
	_, _ = fmt.Fprintln(w, "usage: verbena COMMAND [arguments]")
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-8s %s\n", c.name, c.about)
	}
	_, _ = fmt.Fprintln(w, "verbena COMMAND -help shows a command's flags; verbena version the version.")
}

// interruption is the cause of a context that a signal has ended.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return "interrupted by signal: " + i.signal.String() }

// interruptible returns a context that ends with the first signal to stop. The second one
// kills.
func interruptible(parent context.Context) (context.Context, func()) {
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
			cancel(interruption{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// oneLine makes an error one line.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// closeWith joins the error of closer into *err, for use with defer.
func closeWith(err *error, closer func() error) { *err = errors.Join(*err, closer()) }
