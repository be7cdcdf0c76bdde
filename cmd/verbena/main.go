// Command verbena is the tool of the SDK: ping, perf, receive, send, proxy, analyse, stat and run.
//
//	verbena ping HOST                 does RDMA work between here and there and, if not, why
//	verbena perf HOST                 how fast it is
//	verbena receive DIR               takes files, directories and messages into a folder
//	verbena send FILE... HOST:PORT    sends them there, by RDMA writes
//	verbena send -m TEXT HOST:PORT    sends a message
//	verbena proxy LISTEN TARGET       joins TCP and RDMA, for programs that know only TCP
//	verbena analyse FILE              what a packet capture shows, and what went wrong
//	verbena stat                      counters and connections of running programs
//	verbena run COMMAND...            runs a program in C, C++, Python, Rust ... on software devices
//	verbena completion bash|fish|zsh  prints the completion script of a shell
//	verbena man DIR                   writes the manual pages
//
// verbena help COMMAND shows the flags of a command.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/analyse"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/completion"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/manual"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/ping"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/preload"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proxy"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/stat"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/transfer"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/output"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/internal/version"
)

// command is a subcommand. run returns the exit code.
type command struct {
	page *usage.Page
	run  func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

func commands() []command {
	return []command{
		{ping.Page(), ping.Main},
		{perf.Page(), perf.Main},
		{transfer.SendPage(), transfer.Send},
		{transfer.ReceivePage(), transfer.Receive},
		{proxy.Page(), proxy.Main},
		{analyse.Page(), analyse.Main},
		{stat.Page(), stat.Main},
		{preload.Page(), preload.Main},
		{completion.Page(), ofAll(completion.Main)},
		{manual.Page(), ofAll(manual.Main)},
	}
}

// ofAll is the run of a command that is about all commands.
func ofAll(run func(ctx context.Context, pages []*usage.Page, args []string, stdout, stderr io.Writer) int) func(context.Context, []string, io.Writer, io.Writer) int {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		var pages []*usage.Page
		for _, c := range commands() {
			pages = append(pages, c.page)
		}
		return run(ctx, pages, args, stdout, stderr)
	}
}

func (c *command) name() string { return strings.TrimPrefix(c.page.Name, "verbena ") }

func main() {
	ctx, stop := interrupt.Context(context.Background())
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs a command. If its output could not be written, the command has failed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := output.New(stdout)
	code := choose(ctx, args, out, stderr)
	if err := out.Err(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(stderr, "verbena:", err)
		return exit.Failed
	}
	return code
}

func choose(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		list(stderr)
		return exit.Usage
	}
	name, rest := args[0], args[1:]
	switch name {
	case "version", "-version", "--version":
		_, _ = fmt.Fprintln(stdout, "verbena", version.String())
		return exit.OK
	case "help", "-help", "--help", "-h":
		if len(rest) == 0 {
			list(stdout)
			return exit.OK
		}
		name, rest = rest[0], []string{"-help"}
	}
	for _, c := range commands() {
		if c.name() == name {
			return c.run(ctx, rest, stdout, stderr)
		}
	}
	_, _ = fmt.Fprintf(stderr, "verbena: there is no command %q; verbena help lists them\n", name)
	return exit.Usage
}

// list lists the commands.
func list(w io.Writer) {
	_, _ = fmt.Fprintln(w, "usage: verbena COMMAND [arguments]")
	for _, c := range commands() {
		_, _ = fmt.Fprintf(w, "  %-10s %s\n", c.name(), c.page.About)
	}
	_, _ = fmt.Fprintln(w, "verbena help COMMAND shows the flags of a command; verbena version shows the version.")
}
