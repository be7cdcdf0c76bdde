// Package prometheus collects counters for Prometheus. [New] makes a prometheus.Collector, which the
// program registers in the registry that it serves:
//
//	registry.MustRegister(prometheus.New(metrics.Device(dev), stack))
//
// A metric is called verbena_, the kind of the object (device, context, stack), the name of the
// counter, and its unit or total. The names of a device's counters are those of rxe and of mlx5 where
// the meaning is the same, with the labels device and port of node_exporter's node_infiniband_*:
//
//	verbena_device_rcvd_rnr_err_total{device="soft-lo",port="1"} 3
//	verbena_stack_sent_bytes_total{device="soft-lo"} 81920
//	verbena_context_round_trip_seconds{context="kv",device="mlx5_0"} 1.2e-05
//
// There are no metrics of single connections: their labels would be without bound. Those of contexts
// and stacks are sums over their connections, ended ones included, and the longest round trip and
// silence. verbena stat shows single connections. Objects with the same labels, such as two contexts
// of one name, are added up.
package prometheus

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

// New returns a collector of the sources. Give each device once. It is an unchecked collector, since
// the counters of an adapter are known only when they are read. Metrics may be collected from several
// goroutines at a time.
func New(sources ...metrics.Source) prometheus.Collector { return collector(slices.Clone(sources)) }

type collector []metrics.Source

// Describe implements prometheus.Collector. An unchecked collector describes nothing.
func (collector) Describe(chan<- *prometheus.Desc) {}

// object is what has the same labels.
type object struct {
	kind, device, context string
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	objects := map[object][]verbs.Counter{}
	for _, source := range c {
		for _, o := range source.Metrics(false) {
			key := object{kind: o.Kind, device: o.Device}
			if o.Kind == "context" {
				key.context = o.Name
			}
			objects[key] = counters.AddLists(objects[key], o.Counters)
		}
	}
	// All metrics of a name must have one description, and a driver may have none.
	descriptions := map[string]verbs.Counter{}
	for key, list := range objects {
		for _, n := range list {
			name := key.kind + "_" + n.Name
			if d, found := descriptions[name]; !found || d.Help == "" {
				descriptions[name] = n
			}
		}
	}
	for key, list := range objects {
		for _, n := range list {
			d := descriptions[key.kind+"_"+n.Name]
			d.Value, d.Port = n.Value, n.Port
			out <- metric(key, d)
		}
	}
}

// metric is the metric of a counter.
func metric(o object, n verbs.Counter) prometheus.Metric {
	labels := prometheus.Labels{"device": o.device}
	switch o.kind {
	case "device":
		labels["port"] = ""
		if n.Port > 0 {
			labels["port"] = strconv.Itoa(n.Port)
		}
	case "context":
		labels["context"] = o.context
	}
	value, unit := float64(n.Value), ""
	switch n.Unit {
	case "bytes":
		unit = "_bytes"
	case "words":
		value, unit = value*4, "_bytes"
	case "nanoseconds":
		value, unit = value/1e9, "_seconds"
	}
	name := "verbena_" + o.kind + "_" + strings.Map(valid, n.Name)
	if !strings.HasSuffix(name, unit) {
		name += unit
	}
	kind := prometheus.GaugeValue
	if !n.Gauge {
		kind = prometheus.CounterValue
		name += "_total"
	}
	for label, text := range labels {
		labels[label] = strings.ToValidUTF8(text, "?")
	}
	desc := prometheus.NewDesc(name, cmp.Or(n.Help, n.Name+" of the driver"), nil, labels)
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
