package perf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/chart"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

// plottable reports whether the extension of a file names a format of plots.
func plottable(name string) bool { return drawing(name) != nil }

// drawing returns the function that draws the format of a file, or nil.
func drawing(name string) func(io.Writer, []chart.Set) error {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".svg":
		return chart.SVG
	case ".html":
		return chart.HTML
	}
	return nil
}

// plotTo draws reports to a file, unless its name is empty.
func plotTo(name string, reports []*report.Report) error {
	if name == "" {
		return nil
	}
	return plotSets(name, []chart.Set{{Reports: reports}})
}

func plotSets(name string, sets []chart.Set) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(drawing(name)(f, sets), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("draw %s: %w", name, err), os.Remove(name))
	}
	return nil
}

const plotUsage = `usage: verbena perf plot OUT.svg A.json...
       verbena perf plot OUT.html A.json...

Draws reports of verbena perf --json, each file as a series of its own: the distribution of
latencies, bandwidth over size, and rate over connections, whichever the reports contain.
`

// plotMain runs verbena perf plot.
func plotMain(args []string, stderr io.Writer) int {
	f := flag.NewFlagSet("verbena perf plot", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(stderr, plotUsage)
		return exit.OK
	case err != nil:
	case f.NArg() < 2 || !plottable(f.Arg(0)):
		err = errors.New("name an output file that ends in .svg or .html, then the reports")
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "verbena perf plot: %v; see verbena perf plot -help\n", err)
		return exit.Usage
	}
	var sets []chart.Set
	for _, name := range f.Args()[1:] {
		list, err := report.ReadFiles([]string{name})
		if err != nil {
			_, _ = fmt.Fprintln(stderr, "verbena perf plot:", err)
			return exit.Failed
		}
		s := chart.Set{Reports: list}
		if f.NArg() > 2 {
			s.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		}
		sets = append(sets, s)
	}
	if err := plotSets(f.Arg(0), sets); err != nil {
		_, _ = fmt.Fprintln(stderr, "verbena perf plot:", err)
		return exit.Failed
	}
	return exit.OK
}
