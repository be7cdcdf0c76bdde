package compare

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/bench/internal/report"
)

// valuesOf returns the values of reports. What two values of a row have in common is in its name.
func valuesOf(list []*report.Report) (values []measure.Value) {
	for _, r := range list {
		p := &r.Plan
		how := ""
		if p.Connections > 1 {
			how += fmt.Sprintf(", %d connections", p.Connections)
		}
		if p.Engines > 1 {
			how += fmt.Sprintf(", %d engines", p.Engines)
		}
		if !p.IsLatency() {
			how += fmt.Sprintf(", depth %d", p.Depth)
		}
		if p.Batch > 1 {
			how += fmt.Sprintf(", %d together", p.Batch)
		}
		if p.Moderation > 1 {
			how += fmt.Sprintf(", a completion for %d", p.Moderation)
		}
		if p.Bidirectional {
			how += ", both directions"
		}
		if p.Events {
			how += ", events"
		}
		if p.Verify {
			how += ", verified"
		}
		if p.Duration > 0 {
			how += ", timed"
		}
		for i := range r.Results {
			res := &r.Results[i]
			add := func(what, unit string, less bool, v float64) {
				values = append(values, measure.Value{Row: measure.Row{Title: fmt.Sprintf("%s %d%s%s", p.Test, res.Size, how, what), Unit: unit, Less: less}, Of: v})
			}
			switch {
			case p.IsLatency():
				add(", median", "µs", true, res.Latency.Median)
				add(", least", "µs", true, res.Latency.Min)
				add(", 99 %", "µs", true, res.Latency.P99)
			case res.Size < 4096:
				add("", "M/s", false, res.Rate/1e6)
			default:
				add("", "GB/s", false, res.Bandwidth/1e9)
			}
		}
	}
	return values
}

// overheadValues parses the output of bench overhead -tsv: device, case, ns, allocations.
func overheadValues(output string) (values []measure.Value) {
	for line := range strings.Lines(output) {
		columns := strings.Split(strings.TrimSpace(line), "\t")
		if len(columns) < 3 {
			continue
		}
		for i, unit := range []string{"ns", "allocations"} {
			if i+2 >= len(columns) {
				break
			}
			if v, err := strconv.ParseFloat(columns[i+2], 64); err == nil {
				values = append(values, measure.Value{Row: measure.Row{Title: "overhead, " + columns[0] + ": " + columns[1], Unit: unit, Less: true}, Of: v})
			}
		}
	}
	return values
}

var (
	goLine   = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)
	goAllocs = regexp.MustCompile(`(\d+) allocs/op`)
)

// goValues returns the best value of each benchmark in the output of Go benchmarks.
func goValues(pkg, output string) (values []measure.Value) {
	best := map[measure.Row]int{}
	keep := func(name, unit, value string) {
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return
		}
		row := measure.Row{Title: pkg + " " + name, Unit: unit, Less: true}
		if i, found := best[row]; found {
			values[i].Of = min(values[i].Of, v)
			return
		}
		best[row] = len(values)
		values = append(values, measure.Value{Row: row, Of: v})
	}
	for line := range strings.Lines(output) {
		m := goLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		keep(m[1], "ns", m[2])
		if a := goAllocs.FindStringSubmatch(line); a != nil {
			keep(m[1], "allocations", a[1])
		}
	}
	return values
}
