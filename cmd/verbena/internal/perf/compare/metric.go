package compare

import (
	"fmt"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

// metric is one figure of a result.
type metric struct {
	name, unit string
	moreIsBest bool
	of         func(*report.Result) float64
	ofLatency  bool // a metric of latency tests
}

var metrics = []metric{
	{"typical", "µs", false, func(r *report.Result) float64 { return r.Latency.Typical }, true},
	{"avg", "µs", false, func(r *report.Result) float64 { return r.Latency.Avg }, true},
	{"p99", "µs", false, func(r *report.Result) float64 { return r.Latency.P99 }, true},
	{"p99.9", "µs", false, func(r *report.Result) float64 { return r.Latency.P999 }, true},
	{"bandwidth", "MB/s", true, func(r *report.Result) float64 { return r.Bandwidth / (1 << 20) }, false},
	{"rate", "op/s", true, func(r *report.Result) float64 { return r.Rate }, false},
	{"cpu", "ns/op", false, func(r *report.Result) float64 { return r.Client.CPU + r.Server.CPU }, false},
}

// metricOf finds a metric for a kind of test; without a name, the default metric of that kind.
// It returns nil if tests of the kind do not have the metric.
func metricOf(name string, k plan.Kind) (*metric, error) {
	switch {
	case name == "" && k == plan.Latency:
		name = "typical"
	case name == "":
		name = "bandwidth"
	}
	for i := range metrics {
		m := &metrics[i]
		if m.name == name {
			if m.ofLatency != (k == plan.Latency) && name != "cpu" {
				return nil, nil
			}
			return m, nil
		}
	}
	return nil, fmt.Errorf("there is no metric %q; choose typical, avg, p99 or p99.9 of latencies, bandwidth, rate, or cpu", name)
}
