// Package perf is verbena perf: how fast is RDMA between this machine and another? One program
// does what the programs of perftest do, on any device of the SDK.
//
//	plan      what is measured
//	control   the control messages between the ends
//	load      the operations, at both ends
//	machine   the machines that the figures depend on
//	report    results, as tables, JSON and CSV
//	perftest  the protocol of the programs of perftest
package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
)

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseArgs(args, stdout)
	if err != nil {
		return exit.WrongArguments("verbena perf", err, stderr)
	}
	err = withProfile(o.profile, func() error {
		switch {
		case o.target == "" && o.perftest:
			return servePerftest(ctx, o, stdout)
		case o.target == "":
			return serve(ctx, o, stdout, stderr)
		}
		return measure(ctx, o, stdout, stderr)
	})
	return exit.Code(ctx, "verbena perf", err, stderr)
}

// withProfile runs f, and writes a CPU profile of it to a file, unless file is empty.
func withProfile(file string, f func() error) (err error) {
	if file == "" {
		return f()
	}
	w, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("-cpuprofile: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := pprof.StartCPUProfile(w); err != nil {
		return fmt.Errorf("-cpuprofile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return f()
}
