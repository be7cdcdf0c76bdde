// Command compare measures two versions of the SDK in turns, and prints a table. It
// takes the folder of the other version:
//
//	git worktree add ../before v1.0.0
//	go run ./bench/compare -before ../before
//
// It runs the program bench and the Go benchmarks of the packages, each built in both
// folders, one right after the other in each round, since the speed of a machine
// changes from minute to minute. It prints figures and asserts nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/version"
)

type options struct {
	folders  [2]string // before, after
	rounds   int
	duration time.Duration
	bench    []string // measurements of the program bench
	packages []string // with Go benchmarks
	filter   string   // of Go benchmarks
	verbose  bool
}

func main() {
	o := options{}
	var measurements, packages string
	flag.StringVar(&o.folders[0], "before", "", "`folder` of the version to compare with")
	flag.StringVar(&o.folders[1], "after", ".", "`folder` of the other version")
	flag.IntVar(&o.rounds, "rounds", 7, "how often each is measured")
	flag.DurationVar(&o.duration, "t", 500*time.Millisecond, "time of each measurement; of each Go benchmark, in 10 slices")
	flag.StringVar(&measurements, "run", "write_rate write_lat write_bw read_bw send_bw styles", "the measurements of bench, separated by spaces")
	flag.StringVar(&packages, "packages", "pe dma rdma soft/internal/roce soft/internal/roce/transport", "the packages with Go benchmarks, separated by spaces")
	flag.StringVar(&o.filter, "bench", "^Benchmark(SubmitComplete|ProgressIdle|Copy|Write|Small|MiB)$", "the Go benchmarks, as for go test -bench")
	flag.BoolVar(&o.verbose, "v", false, "write each figure to standard error as it comes")
	showVersion := flag.Bool("version", false, "print the version, and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("compare", version.String())
		return
	}
	o.bench, o.packages = strings.Fields(measurements), strings.Fields(packages)
	if flag.NArg() > 0 || o.folders[0] == "" || o.rounds < 1 || o.duration <= 0 {
		fmt.Fprintln(os.Stderr, "compare: -before must be given, -rounds and -t positive, and there are no arguments; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// program is one that is run in both versions.
type program struct {
	binaries [2]string
	folders  [2]string // to run it in
	args     []string
	parse    func(figures, int, string)
}

func run(ctx context.Context, o options) error {
	temp, err := os.MkdirTemp("", "verbena-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	programs, err := build(ctx, o, temp)
	if err != nil {
		return err
	}
	f := figures{}
	failed := 0
	for round := range o.rounds {
		for _, p := range programs {
			var outputs [2]string
			for i := range 2 {
				// Each is the first in every second round.
				version := (i + round) % 2
				if outputs[version], err = p.run(ctx, version); err != nil {
					break
				}
				if o.verbose {
					fmt.Fprintf(os.Stderr, "round %d, %s\n%s", round+1, [...]string{"before", "after"}[version], outputs[version])
				}
			}
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil: // a busy machine may cost a connection
				failed++
				fmt.Fprintf(os.Stderr, "compare: round %d: %v\n", round+1, err)
				continue
			}
			for version, output := range outputs {
				p.parse(f, version, output)
			}
		}
	}
	if fmt.Print(table(f)); failed > 0 {
		return fmt.Errorf("%d pairs of runs failed and are left out", failed)
	}
	return nil
}

func (p *program) run(ctx context.Context, version int) (string, error) {
	cmd := exec.CommandContext(ctx, p.binaries[version], p.args...)
	cmd.Dir = p.folders[version]
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s in %s: %w\n%s", filepath.Base(p.binaries[version]), strings.Join(p.args, " "), p.folders[version], err, out)
	}
	return string(out), nil
}

// slicesPerRound is how often a Go benchmark is run in a round. The best counts: on a busy
// machine a short one may have the processor to itself.
const slicesPerRound = 10

func build(ctx context.Context, o options, temp string) ([]program, error) {
	var programs []program
	add := func(name, folder string, command, args []string, parse func(figures, int, string)) error {
		p := program{args: args, parse: parse}
		for i, root := range o.folders {
			p.binaries[i], p.folders[i] = filepath.Join(temp, fmt.Sprint(name, i)), filepath.Join(root, folder)
			cmd := exec.CommandContext(ctx, "go", append(command, "-o", p.binaries[i], ".")...)
			cmd.Dir = p.folders[i]
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("build %s in %s: %w\n%s", folder, root, err, out)
			}
		}
		programs = append(programs, p)
		return nil
	}
	for _, m := range o.bench {
		if err := add("bench", "bench", []string{"build"}, []string{"-run", m, "-t", o.duration.String()}, parseBench); err != nil {
			return nil, err
		}
	}
	for _, pkg := range o.packages {
		args := []string{"-test.run", "^$", "-test.bench", o.filter, "-test.benchmem",
			"-test.count", fmt.Sprint(slicesPerRound), "-test.benchtime", (o.duration / slicesPerRound).String()}
		parse := func(f figures, version int, output string) { parseGo(f, version, pkg, output) }
		if err := add(strings.ReplaceAll(pkg, "/", "-"), pkg, []string{"test", "-c"}, args, parse); err != nil {
			return nil, err
		}
	}
	return programs, nil
}
