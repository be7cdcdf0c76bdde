// Package peers is verbena perf peers: it makes the same measurements with Verbena, UCX,
// libfabric and perftest, in turns, and compares them.
//
//	figure  what is measured
//	tool    the programs: how to start them, and what they print
//	pair    a server and its client, under a time limit
//	hosts   where the two ends run
//	result  the results, as text, Markdown and JSON
package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
)

// options are the flags.
type options struct {
	rounds   int
	time     time.Duration // of each measurement
	limit    time.Duration // of each measurement, including setup
	scenes   []string
	json     string
	markdown string
	verbose  bool
}

const usage = `usage: verbena perf peers [flags]

Measures the same operations with Verbena and with those of UCX (ucx_perftest), libfabric
(fi_pingpong, fi_rma_bw) and perftest that are installed. Every program runs as two processes, in several rounds. The output shows the figures
and their ratios. The command needs Linux, and root for the scenes in network namespaces,
which it creates and removes.

Scenes:
  local     two processes on this machine
  adapter   two processes on this machine, with the kernel's first RDMA device
  library   two processes on this machine, perftest on a software device (see verbena run)
  veth1500  two network namespaces connected by a virtual cable, MTU 1500
  veth9000  the same, MTU 9000

`

// sceneNames are all scenes, in their order.
var sceneNames = []string{"local", "adapter", "library", "veth1500", "veth9000"}

func parseArgs(args []string, stderr io.Writer) (*options, error) {
	var o options
	f := flag.NewFlagSet("verbena perf peers", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds; in each round every program makes all its measurements")
	f.DurationVar(&o.time, "D", 300*time.Millisecond, "`time` of each measurement; programs that count operations get a number that takes about as long")
	f.DurationVar(&o.limit, "timeout", 20*time.Second, "`time` limit of a measurement; its programs are then killed")
	scenes := f.String("scene", strings.Join(sceneNames, ","), "`scenes`, separated by commas")
	f.StringVar(&o.json, "json", "", "also write all figures to `FILE`, as JSON; -: standard output, without the tables")
	f.StringVar(&o.markdown, "markdown", "", "write the tables into a document `FILE`, between the lines "+result.Begin+" and "+result.End+"; -: standard output, instead of the tables")
	f.BoolVar(&o.verbose, "verbose", false, "print the command lines, and each figure when it is measured")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(stderr, usage)
		f.SetOutput(stderr)
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.rounds < 1 || o.rounds > 1000:
		return nil, fmt.Errorf("-rounds is %d; it must be 1 to 1000", o.rounds)
	case o.time < 10*time.Millisecond || o.time > time.Hour:
		return nil, fmt.Errorf("-D is %v; it must be 10ms to 1h", o.time)
	case o.limit <= o.time:
		return nil, fmt.Errorf("-timeout is %v; it must be longer than -D, %v", o.limit, o.time)
	case o.json == "-" && o.markdown == "-":
		return nil, errors.New("-json and -markdown cannot both be standard output")
	}
	for name := range strings.SplitSeq(*scenes, ",") {
		if !slices.Contains(sceneNames, name) {
			return nil, fmt.Errorf("there is no scene %q; choose from %s", name, strings.Join(sceneNames, ", "))
		}
		o.scenes = append(o.scenes, name)
	}
	if o.markdown != "" && o.markdown != "-" {
		return &o, result.CheckDocument(o.markdown)
	}
	return &o, nil
}

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseArgs(args, stderr)
	if err != nil {
		return exit.WrongArguments("verbena perf peers", fmt.Errorf("%w; see verbena perf peers -help", err), stderr)
	}
	r, err := measure(ctx, o, stderr)
	if r != nil {
		err = errors.Join(err, write(o, r, err == nil, stdout))
	}
	return exit.Code(ctx, "verbena perf peers", err, stderr)
}

// write writes the result. It does not put an incomplete result into a document.
func write(o *options, r *result.Result, complete bool, stdout io.Writer) (err error) {
	switch {
	case o.json == "-":
		err = r.WriteJSON(stdout)
	case o.markdown == "-":
		_, err = io.WriteString(stdout, r.Markdown())
	default:
		err = r.WriteText(stdout)
	}
	if o.json != "" && o.json != "-" {
		err = errors.Join(err, writeJSON(o.json, r))
	}
	if complete && o.markdown != "" && o.markdown != "-" {
		err = errors.Join(err, r.WriteDocument(o.markdown))
	}
	return err
}

func writeJSON(name string, r *result.Result) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteJSON(f), f.Close())
}
