package compare

import (
	"encoding/csv"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// figure identifies a measured figure. For some figures, less is better.
type figure struct {
	name, unit string
	less       bool
}

// figures has the values of all rounds, for both versions.
type figures map[figure]*[2][]float64

func (f figures) add(k figure, version int, v float64) {
	if f[k] == nil {
		f[k] = &[2][]float64{}
	}
	f[k][version] = append(f[k][version], v)
}

var (
	goLine   = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)
	goAllocs = regexp.MustCompile(`(\d+) allocs/op`)
)

// parsePerf adds the values of a CSV report of verbena perf.
func parsePerf(f figures, version int, flags, report string) {
	rows, err := csv.NewReader(strings.NewReader(report)).ReadAll()
	if err != nil || len(rows) == 0 {
		return
	}
	events := ""
	if slices.Contains(strings.Fields(flags), "-e") {
		events = " -e"
	}
	for _, row := range rows[1:] {
		text := func(column string) string { return row[slices.Index(rows[0], column)] }
		add := func(what, unit string, less bool, column string, scale float64) {
			if v, err := strconv.ParseFloat(text(column), 64); err == nil {
				f.add(figure{fmt.Sprintf("%s%s, %s bytes%s", text("test"), events, text("bytes"), what), unit, less}, version, v*scale)
			}
		}
		bytes, _ := strconv.Atoi(text("bytes"))
		switch {
		case strings.HasSuffix(text("test"), "_lat"):
			add(", median", "µs", true, "typical_us", 1)
			add(", least", "µs", true, "min_us", 1)
		case bytes < 4096:
			add("", "M/s", false, "operations_per_second", 1e-6)
		default:
			add("", "GB/s", false, "bytes_per_second", 1e-9)
		}
	}
}

// parseOverhead adds the figures of bench overhead -tsv: device, case, ns, allocations.
func parseOverhead(f figures, version int, output string) {
	for line := range strings.Lines(output) {
		columns := strings.Split(strings.TrimSpace(line), "\t")
		if len(columns) < 3 {
			continue
		}
		for i, unit := range []string{"ns", "allocs"} {
			if i+2 >= len(columns) {
				break
			}
			if v, err := strconv.ParseFloat(columns[i+2], 64); err == nil {
				f.add(figure{"overhead, " + columns[0] + ": " + columns[1], unit, true}, version, v)
			}
		}
	}
}

// parseGo adds the best value of each benchmark in the output of Go benchmarks.
func parseGo(f figures, version int, pkg, output string) {
	best := map[figure]float64{}
	keep := func(k figure, value string) {
		v, err := strconv.ParseFloat(value, 64)
		if least, found := best[k]; err == nil && (!found || v < least) {
			best[k] = v
		}
	}
	for line := range strings.Lines(output) {
		m := goLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		keep(figure{pkg + " " + m[1], "ns", true}, m[2])
		if a := goAllocs.FindStringSubmatch(line); a != nil {
			keep(figure{pkg + " " + m[1], "allocs", true}, a[1])
		}
	}
	for k, v := range best {
		f.add(k, version, v)
	}
}

// table compares both versions in Markdown. It shows allocations where there are any.
func table(f figures) string {
	var s strings.Builder
	s.WriteString("| measurement | unit | before | after | after : before, of the medians | of the best | each round |\n|---|---|---|---|---|---|---|\n")
	keys := slices.SortedFunc(maps.Keys(f), func(a, b figure) int {
		return strings.Compare(a.name+"\x00"+a.unit, b.name+"\x00"+b.unit)
	})
	for _, k := range keys {
		before, after := f[k][0], f[k][1]
		if len(before) == 0 || len(after) == 0 {
			continue
		}
		best := slices.Max[[]float64]
		if k.less {
			best = slices.Min[[]float64]
		}
		if k.unit == "allocs" && slices.Max(before) == 0 && slices.Max(after) == 0 {
			continue
		}
		var rounds []string
		for i := range min(len(before), len(after)) {
			rounds = append(rounds, ratio(after[i], before[i]))
		}
		slices.Sort(rounds)
		value := func(v []float64) string { return fmt.Sprintf("%.4g (%.4g)", median.Of(v), best(v)) }
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %s | %s |\n", k.name, k.unit, value(before), value(after),
			ratio(median.Of(after), median.Of(before)), ratio(best(after), best(before)), strings.Join(rounds, " "))
	}
	s.WriteString("\nMedians of the rounds, and the best round in brackets. Of ns, µs and allocs less is better, of all else more.\n")
	return s.String()
}

func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}
