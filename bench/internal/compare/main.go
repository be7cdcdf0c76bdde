// Package compare measures two versions of the SDK alternately, and prints a table. It takes
// the folder of the other version:
//
//	git worktree add ../before v1.0.0
//	go run ./bench compare -before ../before
//
// It runs verbena perf, the Go benchmarks of the packages, and bench overhead if it is asked for,
// each built in both folders. In each round it runs one version right after the other, since the
// speed of a machine changes from minute to minute. It prints figures and asserts nothing.
package compare

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

type options struct {
	folders  [2]string // before, after
	rounds   int
	duration time.Duration
	device   string
	perf     []string // measurements: flags of verbena perf
	packages []string // with Go benchmarks
	filter   string   // of Go benchmarks
	overhead bool     // bench overhead, too
	verbose  bool
}

// defaultPerf has the default measurements, as flags of verbena perf.
const defaultPerf = "-test write_bw -s 8 -t 512 -l 64 -Q 64; -test write_bw,read_bw,send_bw -s 1048576 -t 8; -test write_lat,send_lat -s 8; -test send_lat -s 8 -e"

// Run runs bench compare.
func Run(ctx context.Context, args []string) error {
	o := options{}
	f := flag.NewFlagSet("bench compare", flag.ExitOnError)
	f.StringVar(&o.folders[0], "before", "", "`folder` of the version to compare with")
	f.StringVar(&o.folders[1], "after", ".", "`folder` of the other version")
	f.IntVar(&o.rounds, "rounds", 5, "number of measurements of each version")
	f.DurationVar(&o.duration, "t", 500*time.Millisecond, "duration of each measurement; for Go benchmarks it is divided into slices")
	f.StringVar(&o.device, "d", "soft-lo", "device of verbena perf")
	perf := f.String("perf", defaultPerf, "the flags of each run of verbena perf, separated by semicolons")
	packages := f.String("packages", "pe dma rdma soft/internal/roce soft/internal/roce/transport", "the packages with Go benchmarks, separated by spaces")
	f.StringVar(&o.filter, "bench", "^Benchmark(SubmitComplete|ProgressIdle|Copy|Write|Small|MiB)$", "the Go benchmarks, as for go test -bench")
	f.BoolVar(&o.overhead, "overhead", false, "compare bench overhead, too, which both versions must have")
	f.BoolVar(&o.verbose, "v", false, "write each figure to standard error as it comes")
	_ = f.Parse(args) // exits on an error
	if f.NArg() > 0 || o.folders[0] == "" || o.rounds < 1 || o.duration <= 0 {
		return errors.New("-before is required, -rounds and -t must be positive, and no arguments are allowed; see -help")
	}
	for run := range strings.SplitSeq(*perf, ";") {
		if run = strings.TrimSpace(run); run != "" {
			o.perf = append(o.perf, run)
		}
	}
	o.packages = strings.Fields(*packages)
	return run(ctx, o)
}

// program is a program to run in both versions.
type program struct {
	name  string
	run   func(ctx context.Context, version int) (string, error)
	parse func(f figures, version int, output string)
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
				// The two versions alternate in going first.
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
			case err != nil: // on a busy machine a connection may fail
				failed++
				fmt.Fprintf(os.Stderr, "compare: round %d: %s: %v\n", round+1, p.name, err)
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

// slicesPerRound is how many times a Go benchmark runs in a round. The best result counts: on
// a busy machine a short run may have the processor to itself.
const slicesPerRound = 10

func build(ctx context.Context, o options, temp string) ([]program, error) {
	var programs []program
	// each builds a program in both folders, and returns the binaries and the folders of the
	// package.
	each := func(pkg string, command ...string) (binaries, folders [2]string, err error) {
		for i, root := range o.folders {
			binaries[i], folders[i] = filepath.Join(temp, fmt.Sprint(strings.ReplaceAll(pkg, "/", "-"), i)), packageFolder(root, pkg)
			cmd := exec.CommandContext(ctx, "go", append(command, "-o", binaries[i], ".")...)
			cmd.Dir = folders[i]
			if out, err := cmd.CombinedOutput(); err != nil {
				return binaries, folders, fmt.Errorf("build %s in %s: %w\n%s", pkg, root, err, out)
			}
		}
		return binaries, folders, nil
	}
	if len(o.perf) > 0 {
		binaries, _, err := each("cmd/verbena", "build")
		if err != nil {
			return nil, err
		}
		for _, flags := range o.perf {
			programs = append(programs, program{name: "verbena perf " + flags, parse: func(f figures, version int, output string) { parsePerf(f, version, flags, output) },
				run: func(ctx context.Context, version int) (string, error) {
					return perf(ctx, binaries[version], o.device, append(strings.Fields(flags), "-D", o.duration.String()))
				}})
		}
	}
	if o.overhead {
		binaries, _, err := each("bench", "build", "-tags", "verbs")
		if err != nil {
			return nil, err
		}
		programs = append(programs, program{name: "bench overhead", parse: parseOverhead,
			run: func(ctx context.Context, version int) (string, error) {
				cmd := exec.CommandContext(ctx, binaries[version], "overhead", "-tsv", "-rounds", "1", "-t", o.duration.String(), "-d", o.device)
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				return string(out), err
			}})
	}
	for _, pkg := range o.packages {
		binaries, folders, err := each(pkg, "test", "-c")
		if err != nil {
			return nil, err
		}
		programs = append(programs, program{name: pkg, parse: func(f figures, version int, output string) { parseGo(f, version, pkg, output) },
			run: func(ctx context.Context, version int) (string, error) {
				cmd := exec.CommandContext(ctx, binaries[version], "-test.run", "^$", "-test.bench", o.filter, "-test.benchmem",
					"-test.count", fmt.Sprint(slicesPerRound), "-test.benchtime", (o.duration / slicesPerRound).String())
				cmd.Dir = folders[version]
				out, err := cmd.CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w\n%s", err, out)
				}
				return string(out), err
			}})
	}
	return programs, nil
}

// packageFolder returns the folder of a package. In older versions, the packages under
// soft/internal are under internal.
func packageFolder(root, pkg string) string {
	folder := filepath.Join(root, pkg)
	if rest, inside := strings.CutPrefix(pkg, "soft/"); inside {
		if _, err := os.Stat(folder); err != nil {
			return filepath.Join(root, rest)
		}
	}
	return folder
}

// perf runs both ends of verbena perf, and returns the report as CSV.
func perf(ctx context.Context, binary, device string, flags []string) (report string, err error) {
	server := exec.CommandContext(ctx, binary, "perf", "-d", device, "-bind", "127.0.0.1", "-p", "0", "-once")
	out, err := server.StdoutPipe()
	if err != nil {
		return "", err
	}
	var failure bytes.Buffer
	server.Stderr = &failure
	if err := server.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	words := strings.Fields(line)
	if err == nil && (len(words) < 2 || words[0] != "listening") {
		err = fmt.Errorf("the server said %q", line)
	}
	if err == nil {
		client := exec.CommandContext(ctx, binary, append(append([]string{"perf", "-d", device}, flags...), "-csv", "-", strings.TrimSuffix(words[1], ":"))...)
		var b []byte
		if b, err = client.Output(); err != nil {
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				err = fmt.Errorf("%w\n%s", err, exit.Stderr)
			}
		}
		report = string(b)
	}
	if err != nil {
		_ = server.Process.Kill()
	}
	_, _ = io.Copy(io.Discard, lines) // read to the end before Wait
	if waitErr := server.Wait(); err == nil && waitErr != nil {
		err = fmt.Errorf("the server: %w\n%s", waitErr, &failure)
	}
	return report, err
}
