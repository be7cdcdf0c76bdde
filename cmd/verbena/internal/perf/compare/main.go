package compare

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

const usage = `usage: verbena perf compare [flags] A.json[,A2.json...] B.json[,B2.json...]

Compares reports of verbena perf --json: is B faster than A? Each round of each report is one
value. For each test and size it prints the ratio of B to A, as the median over all pairs of
rounds, and a confidence interval of the ratio. The interval is that of the Mann-Whitney
test, which makes no assumption about the distribution of the values. The confidence applies
to all intervals together. If an interval contains 1, no difference is shown.

Values of one run are often similar, and differ from those of the next run: run A and B
alternately, several times, and give all files of each side.

`

// Main runs verbena perf compare, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("verbena perf compare", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	metric := f.String("metric", "", "typical (the median), avg, p99 or p99.9 of latencies, bandwidth or rate, or cpu, which is that of both ends (default: typical, bandwidth)")
	confidence := f.Float64("confidence", 0.95, "probability that all intervals contain the true ratio")
	check := f.Bool("check", false, "exit with code 1 if anything is worse in B")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(stderr, usage)
		f.SetOutput(stderr)
		f.PrintDefaults()
		return exit.OK
	case err != nil:
	case f.NArg() != 2:
		err = fmt.Errorf("got %d arguments, want 2 after the flags: the reports of A and the reports of B, each a list of files separated by commas", f.NArg())
	case !(*confidence > 0 && *confidence < 1):
		err = fmt.Errorf("-confidence is %v; it must be between 0 and 1", *confidence)
	default:
		_, err = metricOf(*metric, 0)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "verbena perf compare: %v; see verbena perf compare -help\n", err)
		return exit.Usage
	}
	c, err := compareFiles(f.Arg(0), f.Arg(1), *metric, *confidence)
	if err == nil {
		err = c.print(stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "verbena perf compare:", err)
		return exit.Failed
	}
	if *check && c.anyWorse() {
		return exit.Failed
	}
	return exit.OK
}

func compareFiles(a, b, metric string, confidence float64) (*Comparison, error) {
	ra, err := report.ReadFiles(strings.Split(a, ","))
	if err != nil {
		return nil, err
	}
	rb, err := report.ReadFiles(strings.Split(b, ","))
	if err != nil {
		return nil, err
	}
	return Compare(ra, rb, metric, confidence)
}

func (c *Comparison) anyWorse() bool {
	for i := range c.Rows {
		if c.Rows[i].Verdict() == Worse {
			return true
		}
	}
	return false
}

// print prints the table.
func (c *Comparison) print(w io.Writer) (err error) {
	printf := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format, args...)
		}
	}
	printf("%-34s %-10s %12s %12s %8s  %-16s %s\n", "test and bytes", "metric", "A (rounds)", "B (rounds)", "B : A", "interval", "")
	for i := range c.Rows {
		r := &c.Rows[i]
		interval := "-"
		if !math.IsInf(r.High, 1) {
			interval = fmt.Sprintf("%.3f to %.3f", r.Low, r.High)
		}
		printf("%-34v %-10s %7.4g (%2d) %7.4g (%2d) %8.3f  %-16s %s\n", r.key, r.metric.unit, median(r.a), len(r.a), median(r.b), len(r.b), r.Ratio, interval, c.verdictText(r))
	}
	printf("confidence %.3g %% for all rows together, %.3g %% for each\n", 100*c.Confidence, 100*(1-c.Alpha))
	for _, k := range c.OnlyA {
		printf("only in A: %v\n", k)
	}
	for _, k := range c.OnlyB {
		printf("only in B: %v\n", k)
	}
	for _, u := range c.Differences {
		printf("warning: a difference may have other causes than the program; %s\n", u)
	}
	return err
}

// verdictText returns the verdict as text.
func (c *Comparison) verdictText(r *Row) string {
	better, worse := "faster", "slower"
	if r.metric.name == "cpu" {
		better, worse = "less", "more"
	}
	switch r.Verdict() {
	case Better:
		return better
	case Worse:
		return worse
	case TooFew:
		return fmt.Sprintf("too few rounds: at least %d of each are needed", enough(c.Alpha))
	}
	return "no difference shown"
}
