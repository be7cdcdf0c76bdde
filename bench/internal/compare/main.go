// Package compare compares two versions of the SDK, which it measures in turns:
//
//	git worktree add ../before v1.0.0
//	go run . compare -before ../../before
//
// It runs verbena perf, the Go benchmarks of the packages, and bench overhead if it is asked for,
// each built in both folders. It also compares reports that verbena perf -json has written.
package compare

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/bench/internal/peers"
	"github.com/verbena-rdma/verbena/bench/internal/report"
	"github.com/verbena-rdma/verbena/internal/process"
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
}

// defaultPerf has the default measurements, as flags of verbena perf.
const defaultPerf = "-test write_bw -s 8 -t 512 -l 64 -Q 64; -test write_bw,read_bw,send_bw -s 1048576 -t 8; -test write_lat,send_lat -s 8; -test send_lat -s 8 -e"

const usage = `usage: bench compare -before FOLDER [flags]        measure two versions in turns
       bench compare A.json[,A2.json...] B.json[,...]  compare reports of verbena perf -json

Is the second better? For each row it prints the ratio of the second to the first, as the median over
all pairs of rounds, and a confidence interval of the ratio: that of the Mann-Whitney test, which
makes no assumption about the distribution of the values. If an interval contains 1, no difference is
shown. Values of one run are often similar, and differ from those of the next run: write reports of
both alternately, several times, and give all files of each.

`

// errWorse: something is worse, and -check was given.
var errWorse = errors.New("the second is worse, as the table shows")

// Run runs bench compare.
func Run(ctx context.Context, args []string) error {
	o := options{}
	f := flag.NewFlagSet("bench compare", flag.ExitOnError)
	f.StringVar(&o.folders[0], "before", "", "`folder` of the version to compare with")
	f.StringVar(&o.folders[1], "after", "..", "`folder` of the other version")
	f.IntVar(&o.rounds, "rounds", 5, "number of measurements of each version")
	f.DurationVar(&o.duration, "t", 500*time.Millisecond, "duration of each measurement; for Go benchmarks it is divided into slices")
	f.StringVar(&o.device, "d", "soft-lo", "device of verbena perf")
	perf := f.String("perf", defaultPerf, "the flags of each run of verbena perf, separated by semicolons")
	packages := f.String("packages", "pe dma rdma soft/internal/roce soft/internal/roce/transport", "the packages with Go benchmarks, separated by spaces")
	f.StringVar(&o.filter, "bench", "^Benchmark(SubmitComplete|ProgressIdle|Copy|Write|Small|MiB)$", "the Go benchmarks, as for go test -bench")
	f.BoolVar(&o.overhead, "overhead", false, "compare bench overhead, too, which both versions must have")
	confidence := f.Float64("confidence", 0.95, "probability that all intervals contain the true ratio")
	check := f.Bool("check", false, "fail if anything is worse in the second")
	verbose := f.Bool("v", false, "write each value to standard error as it comes")
	f.Usage = func() {
		fmt.Fprint(f.Output(), usage)
		f.PrintDefaults()
	}
	_ = f.Parse(args) // exits on an error
	files := o.folders[0] == ""
	if files && f.NArg() != 2 || !files && f.NArg() > 0 || o.rounds < 1 || o.duration <= 0 || !(*confidence > 0 && *confidence < 1) {
		return errors.New("name -before, or the reports of both; -rounds and -t must be positive, -confidence between 0 and 1; see -help")
	}
	var r *measure.Result
	var err error
	if files {
		r, err = ofReports(strings.Split(f.Arg(0), ","), strings.Split(f.Arg(1), ","))
	} else {
		for run := range strings.SplitSeq(*perf, ";") {
			if run = strings.TrimSpace(run); run != "" {
				o.perf = append(o.perf, run)
			}
		}
		o.packages = strings.Fields(*packages)
		log := io.Discard
		if *verbose {
			log = os.Stderr
		}
		r, err = run(ctx, o, log)
	}
	if r == nil || err != nil && r.Rounds == 0 {
		return err
	}
	worse, writing := r.WriteComparison(os.Stdout, *confidence)
	if worse && *check {
		err = errors.Join(err, errWorse)
	}
	return errors.Join(err, writing)
}

// ofReports compares the reports in files. Each round of each report is a value.
func ofReports(a, b []string) (*measure.Result, error) {
	s := &measure.Scene{Contenders: []measure.Contender{{Name: "A"}, {Name: "B"}}}
	var lists [2][]*report.Report
	var rounds [2]map[measure.Row]int
	for i, names := range [][]string{a, b} {
		list, err := report.ReadFiles(names)
		if err != nil {
			return nil, err
		}
		lists[i], rounds[i] = list, map[measure.Row]int{}
		for _, v := range valuesOf(list) {
			s.Add(v, i, rounds[i][v.Row])
			rounds[i][v.Row]++
		}
	}
	for row := range rounds[0] {
		if rounds[1][row] > 0 {
			return &measure.Result{Scenes: []*measure.Scene{s}, Notes: causes(lists[0], lists[1])}, nil
		}
	}
	return nil, fmt.Errorf("the reports have no comparable results: A has %s, B has %s; measure both with the same flags", titles(rounds[0]), titles(rounds[1]))
}

// titles returns some titles of rows.
func titles(rows map[measure.Row]int) string {
	const most = 3
	var list []string
	for row := range rows {
		list = append(list, strconv.Quote(row.Title))
	}
	slices.Sort(list)
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > most:
		list = append(list[:most], fmt.Sprintf("%d more", len(list)-most))
	}
	return strings.Join(list, ", ")
}

// run measures both versions. If some measurements fail, it returns the others and an error.
func run(ctx context.Context, o options, log io.Writer) (*measure.Result, error) {
	temp, err := os.MkdirTemp("", "verbena-compare-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	s := &measure.Scene{Title: "two versions", Contenders: []measure.Contender{{Name: "before", Own: true}, {Name: "after", Own: true}}}
	for i := range o.folders {
		if s.Contenders[i].Measurements, err = o.measurements(ctx, i, temp); err != nil {
			return nil, err
		}
	}
	return measure.Run(ctx, []*measure.Scene{s}, o.rounds, log)
}

// slicesPerRound is how many times a Go benchmark runs in a round. The best result counts: on
// a busy machine a short run may have the processor to itself.
const slicesPerRound = 10

// patience ends a program that hangs.
const patience = 10 * time.Minute

// measurements builds the programs of a version. They go to temp.
func (o *options) measurements(ctx context.Context, version int, temp string) (list []measure.Measurement, err error) {
	build := func(pkg string, command ...string) (binary, folder string, err error) {
		binary, folder = filepath.Join(temp, fmt.Sprint(strings.ReplaceAll(pkg, "/", "-"), version)), filepath.Join(o.folders[version], pkg)
		_, err = process.Run(ctx, process.Program{Args: append(command, "-o", binary, "."), Dir: folder})
		return binary, folder, err
	}
	if len(o.perf) > 0 {
		binary, _, err := build("cmd/verbena", "go", "build")
		if err != nil {
			return nil, err
		}
		for _, flags := range o.perf {
			list = append(list, measure.Measurement{Name: "verbena perf " + flags, Do: func(ctx context.Context) ([]measure.Value, error) {
				port, err := peers.FreePort()
				if err != nil {
					return nil, err
				}
				server, client := peers.Perf(binary, o.device, "127.0.0.1", port, append(strings.Fields(flags), "-D", o.duration.String())...)
				out, err := peers.Pair(ctx, server, client, port, patience, false)
				if err != nil {
					return nil, err
				}
				reports, err := report.Read(strings.NewReader(out.Output))
				return valuesOf(reports), err
			}})
		}
	}
	add := func(name, binary, folder string, parse func(string) []measure.Value, args ...string) {
		list = append(list, measure.Measurement{Name: name, Do: func(ctx context.Context) ([]measure.Value, error) {
			out, err := process.Run(ctx, process.Program{Args: append([]string{binary}, args...), Dir: folder, Limit: patience})
			return parse(out), err
		}})
	}
	if o.overhead {
		binary, folder, err := build("bench", "go", "build", "-tags", "verbs")
		if err != nil {
			return nil, err
		}
		add("bench overhead", binary, folder, overheadValues, "overhead", "-tsv", "-rounds", "1", "-t", o.duration.String(), "-d", o.device)
	}
	for _, pkg := range o.packages {
		binary, folder, err := build(pkg, "go", "test", "-c")
		if err != nil {
			return nil, err
		}
		add(pkg, binary, folder, func(out string) []measure.Value { return goValues(pkg, out) }, "-test.run", "^$", "-test.bench", o.filter, "-test.benchmem",
			"-test.count", fmt.Sprint(slicesPerRound), "-test.benchtime", (o.duration / slicesPerRound).String())
	}
	return list, nil
}
