// Command verbena is the tool of the SDK: ping, perf, receive, send, proxy, analyse and run.
//
//	verbena ping HOST                 does RDMA work between here and there and, if not, why
//	verbena perf HOST                 how fast it is
//	verbena receive DIR               takes files, directories and messages into a folder
//	verbena send FILE... HOST:PORT    sends them there, by RDMA writes
//	verbena send -m TEXT HOST:PORT    sends a message
//	verbena proxy LISTEN TARGET       joins TCP and RDMA, for programs that know only TCP
//	verbena analyse FILE              what a packet capture shows, and what went wrong
//	verbena run COMMAND...            runs a program in C, C++, Python, Rust ... on software devices
//
// verbena COMMAND -help shows the flags of a command.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/analyse"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/ping"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/preload"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proxy"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/transfer"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/output"
	"github.com/verbena-rdma/verbena/internal/version"
)

// command is a subcommand. run returns the exit code.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

var commands = []command{
	{"ping", "check whether RDMA works between this host and another, and if not, why", ping.Main},
	{"perf", "measure RDMA between this host and another", perf.Main},
	{"send", "send files, directories or a message", transfer.Send},
	{"receive", "receive files, directories and messages into a folder", transfer.Receive},
	{"proxy", "join TCP connections and RDMA connections, for programs that know only TCP", proxy.Main},
	{"analyse", "say what a packet capture of RoCEv2 shows, and what went wrong", analyse.Main},
	{"run", "run a program that uses libibverbs or librdmacm on the software device", preload.Main},
}

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
		usage(stderr)
		return exit.Usage
	}
	switch args[0] {
	case "version", "-version", "--version":
		_, _ = fmt.Fprintln(stdout, "verbena", version.String())
		return 0
	case "help", "-help", "--help", "-h":
		usage(stdout)
		return 0
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	_, _ = fmt.Fprintf(stderr, "verbena: there is no command %q\n", args[0])
	usage(stderr)
	return exit.Usage
}

func usage(w io.Writer) {
	_, _ = fmt.Fprintln(w, "usage: verbena COMMAND [arguments]")
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-8s %s\n", c.name, c.about)
	}
	_, _ = fmt.Fprintln(w, "verbena COMMAND -help shows the flags of a command; verbena version shows the version.")
}
