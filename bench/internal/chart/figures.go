// Package chart draws reports of verbena perf: the distribution of latencies, bandwidth by
// size, and rate by number of connections.
package chart

import (
	"cmp"
	"fmt"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/verbena-rdma/verbena/bench/internal/report"
)

// Set is the reports of one source, such as a file.
type Set struct {
	Name    string // in the legend; empty if there is only one set
	Reports []*report.Report
}

// figure is what one plot shows.
type figure struct {
	title, x, y string
	powers      bool // the ticks of x are powers of two; otherwise powers of ten
	stepped     bool
	series      []series
}

type series struct {
	name   string
	points plotter.XYs
}

// figures returns the figures that have data.
func figures(sets []Set) (list []figure) {
	for _, f := range []figure{latencies(sets), bandwidths(sets), rates(sets)} {
		if len(f.series) > 0 {
			list = append(list, f)
		}
	}
	return list
}

// name returns the legend text of a series.
func (s *Set) name(format string, args ...any) string {
	n := fmt.Sprintf(format, args...)
	if s.Name != "" {
		n = s.Name + ": " + n
	}
	return n
}

// latencies has a series for each test and size, over all rounds together.
func latencies(sets []Set) figure {
	f := figure{title: "Latency", x: "µs", y: "share of all operations that took no longer", stepped: true}
	for _, s := range sets {
		type key struct {
			test string
			size int
		}
		counts := map[key]map[int64]int64{}
		var order []key
		for _, r := range s.Reports {
			for i := range r.Results {
				res := &r.Results[i]
				if res.Latency == nil {
					continue
				}
				k := key{r.Plan.Test, res.Size}
				if counts[k] == nil {
					counts[k] = map[int64]int64{}
					order = append(order, k)
				}
				for _, b := range res.Latency.Bars {
					if b.Nanoseconds > 0 && b.Count > 0 {
						counts[k][b.Nanoseconds] += b.Count
					}
				}
			}
		}
		for _, k := range order {
			if p := cumulate(counts[k]); len(p) > 0 {
				f.series = append(f.series, series{s.name("%v, %d bytes", k.test, k.size), p})
			}
		}
	}
	return f
}

// resolution is about how many heights of a curve can be distinguished in a plot.
const resolution = 300

// cumulate turns counts by nanoseconds into a cumulative distribution. It leaves out points
// that would not be visible.
func cumulate(counts map[int64]int64) (points plotter.XYs) {
	var times []int64
	total := 0.0
	for t, n := range counts {
		times = append(times, t)
		total += float64(n)
	}
	slices.Sort(times)
	sum, drawn := 0.0, 0.0
	for i, t := range times {
		sum += float64(counts[t])
		if i == 0 || i == len(times)-1 || (sum-drawn)/total >= 1.0/resolution {
			points = append(points, plotter.XY{X: float64(t) / 1000, Y: sum / total})
			drawn = sum
		}
	}
	return points
}

// overGroups makes a series for each group of results, with the median of all rounds at each
// x.
func overGroups[K comparable](s *Set, of func(*report.Report, *report.Result) (group K, x int, y float64, ok bool), name func(K) string) (list []series) {
	values := map[K]map[int][]float64{}
	var order []K
	for _, r := range s.Reports {
		for i := range r.Results {
			k, x, y, ok := of(r, &r.Results[i])
			if !ok || x <= 0 {
				continue
			}
			if values[k] == nil {
				values[k] = map[int][]float64{}
				order = append(order, k)
			}
			values[k][x] = append(values[k][x], y)
		}
	}
	for _, k := range order {
		var points plotter.XYs
		for x, ys := range values[k] {
			slices.Sort(ys)
			points = append(points, plotter.XY{X: float64(x), Y: (ys[(len(ys)-1)/2] + ys[len(ys)/2]) / 2})
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		list = append(list, series{s.name("%s", name(k)), points})
	}
	return list
}

// atomics have one size.
var atomics = map[string]bool{"fetch_add_bw": true, "compare_swap_bw": true}

type testOf struct {
	test  string
	other int // connections or bytes
	both  bool
}

// bandwidths has a series for each test and number of connections.
func bandwidths(sets []Set) figure {
	f := figure{title: "Bandwidth", x: "bytes of each operation", y: "GB/s", powers: true}
	for _, s := range sets {
		f.series = append(f.series, overGroups(&s, func(r *report.Report, res *report.Result) (testOf, int, float64, bool) {
			ok := !r.Plan.IsLatency() && !atomics[r.Plan.Test]
			return testOf{r.Plan.Test, r.Plan.Connections, r.Plan.Bidirectional}, res.Size, res.Bandwidth / 1e9, ok
		}, func(k testOf) string { return fmt.Sprintf("%v, %d connections%s", k.test, k.other, direction(k.both)) })...)
	}
	return f
}

// rates has a series for each test and size that was measured with several numbers of
// connections.
func rates(sets []Set) figure {
	f := figure{title: "Rate", x: "connections", y: "million operations a second", powers: true}
	for _, s := range sets {
		for _, one := range overGroups(&s, func(r *report.Report, res *report.Result) (testOf, int, float64, bool) {
			return testOf{r.Plan.Test, res.Size, r.Plan.Bidirectional}, r.Plan.Connections, res.Rate / 1e6, !r.Plan.IsLatency()
		}, func(k testOf) string { return fmt.Sprintf("%v, %d bytes%s", k.test, k.other, direction(k.both)) }) {
			if len(one.points) > 1 {
				f.series = append(f.series, one)
			}
		}
	}
	return f
}

func direction(both bool) string {
	if both {
		return ", both directions"
	}
	return ""
}
