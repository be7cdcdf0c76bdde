// Package prometheus collects counters for Prometheus. [New] makes a prometheus.Collector, which the
// program registers in the registry that it serves:
//
//	registry.MustRegister(prometheus.New(metrics.Device(dev), stack))
//
// A metric is called verbena_, the kind of the object (device, context, stack, agent), the name of the
// counter, and its unit or total. The names of a device's counters are those of rxe and of mlx5 where
// the meaning is the same, with the labels device and port of node_exporter's node_infiniband_*:
//
//	verbena_device_rcvd_rnr_err_total{device="soft-lo",port="1"} 3
//	verbena_stack_sent_bytes_total{device="soft-lo"} 81920
//	verbena_context_round_trip_seconds{context="kv",device="mlx5_0"} 1.2e-05
//
// There are no metrics of single connections: their labels would be without bound. Those of contexts
// and stacks are sums over their connections, ended ones included, and the longest round trip and
// silence. verbena stat shows single connections. Contexts of one name and device are added up.
package prometheus

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

// New returns a collector of the sources. It is an unchecked collector, since the counters of an
// adapter are known only when they are read. Metrics may be collected from several goroutines at a
// time.
func New(sources ...metrics.Source) prometheus.Collector { return collector(slices.Clone(sources)) }

type collector []metrics.Source

// Describe implements prometheus.Collector. An unchecked collector describes nothing.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	objects := metrics.Totals(c...)
	// All metrics of a name must have one description, and a driver may have none.
	descriptions := map[string]verbs.Counter{}
	for _, o := range objects {
		for _, n := range o.Counters {
			name := metricName(&o, n)
			if d, found := descriptions[name]; !found || d.Help == "" {
				descriptions[name] = n
			}
		}
	}
	sent := map[string]bool{} // a driver may have two counters whose names differ in what is no letter
	for _, o := range objects {
		for _, n := range o.Counters {
			name := metricName(&o, n)
			key := fmt.Sprintf("%s %d %q %q", name, n.Port, o.Device, o.Name)
			if !sent[key] {
				sent[key] = true
				out <- metric(&o, name, n, cmp.Or(descriptions[name].Help, n.Name+" of the driver"))
			}
		}
	}
}

// metricName is the name of the metric of a counter.
func metricName(o *metrics.Object, n verbs.Counter) string {
	name := "verbena_" + o.Kind + "_" + strings.Map(valid, n.Name)
	if _, suffix := inUnit(n); !strings.HasSuffix(name, suffix) {
		name += suffix
	}
	if !n.Gauge {
		name += "_total"
	}
	return name
}

// inUnit is the value of a counter in the unit that Prometheus wants, and how names with that end.
func inUnit(n verbs.Counter) (value float64, suffix string) {
	value = float64(n.Value)
	switch n.Unit {
	case "bytes":
		return value, "_bytes"
	case "words":
		return value * 4, "_bytes"
	case "nanoseconds":
		return value / 1e9, "_seconds"
	}
	return value, ""
}

// metric is the metric of a counter.
func metric(o *metrics.Object, name string, n verbs.Counter, help string) prometheus.Metric {
	labels := prometheus.Labels{"device": o.Device}
	switch o.Kind {
	case "device":
		labels["port"] = ""
		if n.Port > 0 {
			labels["port"] = strconv.Itoa(n.Port)
		}
	case "context":
		labels["context"] = o.Name
	}
	kind := prometheus.CounterValue
	if n.Gauge {
		kind = prometheus.GaugeValue
	}
	desc := prometheus.NewDesc(name, help, nil, labels)
	value, _ := inUnit(n)
	m, err := prometheus.NewConstMetric(desc, kind, value)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// valid replaces what the name of a metric may not have.
func valid(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
		return r
	}
	return '_'
}
